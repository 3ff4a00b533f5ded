"""octavo beside other servers: the same model, the same load, one server at a time, in turns.

    .venv/bin/python -m benchmarks.peers [--only vllm-w8a8 llama.cpp] [--runs 3] [--seconds 60]

Installs the peers into .venv/peers, each in an environment of its own, and makes the files they
need from octavo's default model. In each run, every server is started, warmed up, measured and
stopped. Prints the medians, and octavo's ratio to the best peer of each column; writes that and
all that was measured to --out. A peer that can't be installed, started or measured has a row that
says why. Nothing else should run on the machine. --runs 0 installs them alone.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.peers import hugging_face, llama_cpp, openvino, table, vllm_cpu
from benchmarks.peers.errors import PeerError
from benchmarks.peers.measure import measure
from benchmarks.peers.peer import Launch, Peer, Setup
from benchmarks.peers.table import OURS, Result
from loadtests import machine
from model.host import usable_cores
from service import hub
from service.cli import DEFAULT_MODEL
from tests.served import OCTAVO

ROOT = Path(__file__).parent.parent.parent
PEERS = openvino.PEERS | vllm_cpu.PEERS | llama_cpp.PEERS | hugging_face.PEERS


def octavo(setup: Setup) -> Launch:
    return Launch((OCTAVO, "serve", DEFAULT_MODEL), DEFAULT_MODEL)


def main() -> None:
    arguments = parse_arguments()
    setup = Setup(ROOT / ".venv/peers", hub.resolve(DEFAULT_MODEL), usable_cores())
    chosen = {OURS: Peer("octavo", octavo)}
    chosen |= {name: PEERS[name] for name in arguments.only or PEERS}
    bench = Bench(arguments.out, {name: Result(title=peer.title) for name, peer in chosen.items()})
    bench.prepare(chosen, setup)
    for number in range(1, arguments.runs + 1):
        bench.run(number, arguments.seconds)
    print(f"\n{table.to_markdown(bench.results)}\n\n{table.LEGEND}")
    sys.exit(bool(bench.results[OURS].problem))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="octavo beside other servers.")
    parser.add_argument("--only", nargs="+", choices=PEERS, metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=60, help="after so many, no request of a level begins"
    )
    parser.add_argument("--out", type=Path, default=Path("octavo-bench/peers"), help="folder")
    return parser.parse_args()


class Bench:
    def __init__(self, out: Path, results: dict[str, Result]) -> None:
        self.out = out
        self.results = results
        self.launches: dict[str, Launch] = {}

    def prepare(self, chosen: dict[str, Peer], setup: Setup) -> None:
        for name, peer in chosen.items():
            say(f"{name}: is installed, unless it is already")
            try:
                self.launches[name] = peer.prepare(setup)
            except (PeerError, OSError) as error:
                self._give_up(name, error)

    def run(self, number: int, seconds: float) -> None:
        for name, launch in list(self.launches.items()):
            say(f"{name}: run {number}")
            try:
                out = self.out / name / str(number)
                run = measure(launch, seed=number, seconds=seconds, out=out)
                self.results[name].runs.append(run)
            except (PeerError, OSError) as error:
                self._give_up(name, error)
            (self.out / "peers.json").write_bytes(table.to_json(self.results, machine.describe()))
            (self.out / "peers.md").write_text(table.to_markdown(self.results) + "\n")

    def _give_up(self, name: str, error: Exception) -> None:
        """What it did before still counts."""
        say(f"{name}: {error}")
        self.launches.pop(name, None)
        self.results[name].problem = str(error)


def say(line: str) -> None:
    print(f"bench-peers: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
