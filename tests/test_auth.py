"""The file of API keys: what is read from it, what is refused and in which words."""

from hashlib import sha256
from pathlib import Path

import pytest

from service.auth import Tenant, read_keys
from service.config import ConfigError

TWO = b"""
[[key]]
name = "a"
key = "sk-a"

[[key]]
name = "b.2_-"
sha256 = "%s"
weight = 3
""" % sha256(b"sk-b").hexdigest().upper().encode()


def write(path: Path, content: bytes) -> str:
    file = path / "keys.toml"
    file.write_bytes(content)
    return str(file)


@pytest.mark.parametrize(
    "content", [TWO, TWO.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + TWO], ids=["LF", "CRLF", "BOM"]
)
def test_keys_are_found_by_themselves_or_by_their_digest(tmp_path: Path, content: bytes) -> None:
    keys = read_keys(write(tmp_path, content))
    assert keys.find(b"sk-a") == Tenant("a", 1.0)
    assert keys.find(b"sk-b") == Tenant("b.2_-", 3.0)
    for unknown in (b"", b"sk-", b"sk-A", b"sk-a ", b"sk-a\x00", "sk-ä".encode(), b"a"):
        assert keys.find(unknown) is None


def entry(**fields: str) -> bytes:
    lines = (f"{name} = {value}" for name, value in ({"name": '"a"'} | fields).items())
    return "\n".join(["[[key]]", *lines, ""]).encode()


KEY = {"key": '"sk-secret"'}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has no keys: write a [[key]]"),
        (b"key = []", "it has no keys"),
        (b"[key]\nname = 'a'", "it has no keys"),
        (b"key = [1]", "number 1: it is no table"),
        (b"[[key]\n", "it isn't TOML: "),
        (b"[[key]]\nname = sk-secret\n", "(at line 2, column 8)"),
        (b"\xff\xfe", "it isn't UTF-8"),
        (entry(), "number 1: it has no usable key"),
        (entry(key='""'), "it has no usable key"),
        (entry(key="7"), "it has no usable key"),
        (entry(key='"sk secret"'), "it has no usable key"),
        (entry(key='"schlüssel"'), "it has no usable key"),
        (entry(key=f'"{"x" * 513}"'), "it has no usable key"),
        (entry(sha256='"abc"'), "sha256 is no digest: write the 64 hex digits"),
        (entry(**KEY, sha256=f'"{"0" * 64}"'), "it has key and sha256: keep one"),
        (entry(name='""', **KEY), "name is '': take 1 to 64"),
        (entry(name='"a/b"', **KEY), "name is 'a/b'"),
        (entry(name="1", **KEY), "name is 1"),
        (b"[[key]]\nkey = 'sk-secret'", "name is None"),
        (entry(**KEY, wieght="2"), "it has 'wieght': use admin, key, name, "),
        (entry(**KEY, weight="0"), "weight is 0: take 0.1 to 1000"),
        (entry(**KEY, weight="-1"), "weight is -1"),
        (entry(**KEY, weight="nan"), "weight is nan"),
        (entry(**KEY, weight="inf"), "weight is inf"),
        (entry(**KEY, weight="true"), "weight is True"),
        (entry(**KEY, weight='"2"'), "weight is '2'"),
        (entry(**KEY, requests_per_minute="0"), "requests_per_minute is 0: take 1 to"),
        (entry(**KEY, requests_per_minute="1.5"), "requests_per_minute is 1.5"),
        (entry(**KEY, tokens_per_minute="true"), "tokens_per_minute is True"),
        (entry(**KEY, tokens_per_minute="9999999999999"), "tokens_per_minute is 9999999999999"),
        (entry(**KEY, admin="1"), "admin is 1: take true or false"),
        (entry(**KEY) + entry(key='"other"'), "number 2: name is 'a', as before"),
        (entry(**KEY) + entry(name='"b"', **KEY), "number 2: 'a' has the same key"),
        (
            entry(**KEY) + entry(name='"b"', sha256=f'"{sha256(b"sk-secret").hexdigest()}"'),
            "number 2: 'a' has the same key",
        ),
    ],
)
def test_what_is_wrong_is_said_without_telling_a_key(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        read_keys(path)
    assert str(caught.value).startswith(f"--api-key-file {path}")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't be read \(No such file or directory\): name a"):
        read_keys(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"can't be read \(Is a directory\)"):
        read_keys(str(tmp_path))


def test_limits_and_admins(tmp_path: Path) -> None:
    limits = {"requests_per_minute": "60", "tokens_per_minute": "1000", "admin": "true"}
    keys = read_keys(write(tmp_path, entry(key='"sk-a"', **limits)))
    assert keys.find(b"sk-a") == Tenant("a", 1.0, 60, 1000, True)


def test_a_renewed_ring_holds_the_new_keys_only(tmp_path: Path) -> None:
    keys = read_keys(write(tmp_path, entry(key='"old"')))
    keys.renew(read_keys(write(tmp_path, entry(name='"b"', key='"new"'))))
    assert (keys.find(b"old"), keys.find(b"new")) == (None, Tenant("b"))
    assert keys.names == ["b"]
