"""API keys: who holds which, and what they may, read from a file. Knows no HTTP.

    [[key]]
    name = "search-team"        # of letters, digits and . _ -; in log lines, never the key
    key = "…"                   # or sha256 = "…", the key's digest in hex
    weight = 2                  # optional: twice the share of those that have 1
    requests_per_minute = 60    # optional, as is
    tokens_per_minute = 90000   # of prompts and answers together
    admin = true                # optional: may ask /debug, too

Keys are held as digests, and compared in a time that doesn't depend on where they differ.
"""

import hmac
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from service.config import ConfigError

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
KEY = re.compile(r"[!-~]{1,512}")
DIGEST = re.compile(r"[0-9a-fA-F]{64}")
FIELDS = {
    *("name", "key", "sha256", "weight"),
    *("requests_per_minute", "tokens_per_minute", "admin"),
}
MIN_WEIGHT, MAX_WEIGHT = 0.1, 1000
MAX_PER_MINUTE = 10**12


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who a request is from; without API keys all are from the same, which has no name."""

    name: str = ""
    weight: float = 1.0
    requests_per_minute: int = 0
    """0: as many as they like; of tokens, too."""
    tokens_per_minute: int = 0
    admin: bool = False


class KeyRing:
    def __init__(self, tenants: Mapping[bytes, Tenant]) -> None:
        """By the SHA-256 digest of their keys."""
        self._tenants = tenants

    @property
    def names(self) -> list[str]:
        return [tenant.name for tenant in self._tenants.values()]

    def renew(self, other: "KeyRing") -> None:
        """Hold the other's keys from here on, in place of all that it has."""
        self._tenants = other._tenants

    def find(self, key: bytes) -> Tenant | None:
        """Whose key it is. All are looked at, so that the time doesn't tell how many came first."""
        digest = sha256(key).digest()
        found = [
            tenant for known, tenant in self._tenants.items() if hmac.compare_digest(known, digest)
        ]
        return found[0] if found else None


def read_keys(path: str) -> KeyRing:
    """Raises ConfigError, which names the entry and its field but never a key."""
    entries = _parse(path).get("key")
    if not isinstance(entries, list) or not entries:
        raise _refusal(path, "it has no keys", "write a [[key]] with name and key for each")
    tenants: dict[bytes, Tenant] = {}
    for number, entry in enumerate(entries, start=1):
        place = f"{path}, [[key]] number {number}"
        digest, tenant = _read_entry(entry, place)
        if tenant.name in (other.name for other in tenants.values()):
            raise _refusal(place, f"name is {tenant.name!r}, as before", "give each key its own")
        if digest in tenants:
            raise _refusal(place, f"{tenants[digest].name!r} has the same key", "make another")
        tenants[digest] = tenant
    return KeyRing(tenants)


def _parse(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise _refusal(
            path, f"it can't be read ({error.strerror})", "name a readable file"
        ) from None
    except UnicodeDecodeError:
        raise _refusal(path, "it isn't UTF-8", "save it as such") from None
    except tomllib.TOMLDecodeError as error:
        raise _refusal(path, f"it isn't TOML: {error}", "mend that line") from None


def _read_entry(entry: object, place: str) -> tuple[bytes, Tenant]:
    if not isinstance(entry, dict):
        raise _refusal(place, "it is no table", "write [[key]], and its fields below")
    if unknown := sorted(entry.keys() - FIELDS):
        raise _refusal(place, f"it has {unknown[0]!r}", f"use {', '.join(sorted(FIELDS))} only")
    name = entry.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _refusal(place, f"name is {name!r}", "take 1 to 64 letters, digits, dots, _ or -")
    tenant = Tenant(
        name,
        _read_weight(entry, place),
        _read_rate(entry, "requests_per_minute", place),
        _read_rate(entry, "tokens_per_minute", place),
        _read_admin(entry, place),
    )
    return _read_digest(entry, place), tenant


def _read_digest(entry: Mapping[str, Any], place: str) -> bytes:
    match entry.get("key"), entry.get("sha256"):
        case str(key), None if KEY.fullmatch(key):
            return sha256(key.encode()).digest()
        case None, str(digest) if DIGEST.fullmatch(digest):
            return bytes.fromhex(digest)
        case _, None:
            raise _refusal(
                place, "it has no usable key", "write 1 to 512 ASCII characters without spaces"
            )
        case None, _:
            raise _refusal(
                place, "sha256 is no digest", "write the 64 hex digits of the key's SHA-256"
            )
        case _:
            raise _refusal(place, "it has key and sha256", "keep one of them")


def _read_weight(entry: Mapping[str, Any], place: str) -> float:
    weight = entry.get("weight", 1.0)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise _refusal(place, f"weight is {weight!r}", f"take {MIN_WEIGHT} to {MAX_WEIGHT}")
    return float(weight)


def _read_rate(entry: Mapping[str, Any], field: str, place: str) -> int:
    rate = entry.get(field, 0)
    if type(rate) is not int or (field in entry and not 1 <= rate <= MAX_PER_MINUTE):
        remedy = f"take 1 to {MAX_PER_MINUTE}, or leave it out"
        raise _refusal(place, f"{field} is {rate!r}", remedy)
    return rate


def _read_admin(entry: Mapping[str, Any], place: str) -> bool:
    admin = entry.get("admin", False)
    if not isinstance(admin, bool):
        raise _refusal(place, f"admin is {admin!r}", "take true or false")
    return admin


def _refusal(place: str, problem: str, remedy: str) -> ConfigError:
    return ConfigError(f"--api-key-file {place}: {problem}: {remedy}")
