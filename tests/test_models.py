"""The list of models: every served name, and no other."""

from tests.fakes import MAX_MODEL_LEN, Client, FakeEngine


def test_every_name_is_listed() -> None:
    client = Client(served_model_name="tiny, org/tiny")
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny", "org/tiny"]
    for model in listed["data"]:
        assert client.get(f"/v1/models/{model['id']}").json() == model
        assert model.keys() == {"id", "object", "created", "owned_by", "max_model_len"}
        assert model["max_model_len"] == MAX_MODEL_LEN


def test_another_name_is_not_found() -> None:
    answer = Client().get("/v1/models/no-such-model")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_the_length_is_unknown_until_the_engine_was_ready() -> None:
    engine = FakeEngine()
    engine.info = None
    assert Client(engine).get("/v1/models").json()["data"][0]["max_model_len"] is None


def test_an_answer_has_the_name_that_was_asked_for() -> None:
    client = Client()
    assert client.chat(model="tiny-too").json()["model"] == "tiny-too"
    assert client.chat().json()["model"] == "tiny"
    assert client.chat(model=None).json()["model"] == "tiny"
