"""Fetches a model from the Hugging Face hub: of a repository the safetensors, or else its one GGUF.

Knows the names of a repository's files, and nothing of what is in them. It is the main file of a
process of its own, since the hub's library has threads that nothing else ends.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

from model.errors import ModelError

INSTALLED = find_spec("huggingface_hub") is not None
if INSTALLED:
    import huggingface_hub

FILES = ["*.safetensors", "*.json", "*.jinja"]  # never *.bin or *.pt: pickles


def main() -> None:
    """`python -m service.hugging_face ORG/NAME [FILE]` prints the path, or why there is none."""
    try:
        print(fetch(*sys.argv[1:]))
    except ModelError as error:
        print(error)
        sys.exit(1)


def fetch(repository: str, file: str | None = None) -> Path:
    """The file, or else the folder of a whole model, in the hub's own cache."""
    if not INSTALLED:
        raise ModelError(
            f"{repository} is no local path, and fetching it from Hugging Face needs an optional "
            "package: pip install 'octavo[hub]'"
        )
    try:
        if file := file or only_gguf(repository):
            return Path(huggingface_hub.hf_hub_download(repository, file))
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=FILES))
    except ModelError:
        raise
    except huggingface_hub.errors.RepositoryNotFoundError:
        raise ModelError(
            f"Hugging Face has no model {repository!r} that you may read: check its name, or log "
            "in with `hf auth login`"
        ) from None
    except Exception as error:  # its HTTP client's errors come through, whichever that is
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"{join_id(repository, file)!r} is no local path and can't be fetched from Hugging "
            f"Face ({reason}): check the name and the network, or give the path of a copy"
        ) from None


def only_gguf(repository: str) -> str | None:
    """Of a repository without safetensors. None of one that has them, and where the hub can't be
    reached: an earlier copy may do, which snapshot_download finds."""
    try:
        files = huggingface_hub.list_repo_files(repository)
    except Exception:  # snapshot_download meets it too, where it is explained
        return None
    if "config.json" in files and any(file.endswith(".safetensors") for file in files):
        return None
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        names = ", ".join(join_id(repository, file) for file in ggufs)
        raise ModelError(f"{repository} holds several models: name one of {names}")
    raise ModelError(
        f"{repository} holds no model that octavo reads: neither config.json with .safetensors nor "
        "a .gguf file. Take a version of the model that does"
    )


def join_id(repository: str, file: str | None) -> str:
    return f"{repository}/{file}" if file else repository


if __name__ == "__main__":
    main()
