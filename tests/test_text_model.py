"""The text side of a model, read from its files."""

from pathlib import Path

import pytest

from service.text.model import TextModel
from tests.fakes import make_text


@pytest.mark.parametrize(("used", "defaults"), [(True, {"temperature": 0.6}), (False, {})])
def test_what_the_maker_recommends_is_read_unless_told_otherwise(
    tmp_path: Path, used: bool, defaults: dict[str, float]
) -> None:
    tokenizer = make_text().tokenizer
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": 7}')
    text = TextModel.load(tmp_path, use_generation_config=used)
    assert text.defaults == defaults
    assert text.tokenizer.eos_ids == {7}, "where a turn ends holds either way"
    assert text.tokenizer.encode("é") == tokenizer.encode("é")
