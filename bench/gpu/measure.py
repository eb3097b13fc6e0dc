"""How a bar is measured: every side as a CUDA graph of one call on each of several sets of operands, which together exceed L2
several times; the graphs then take turns by the lab's protocol (tools/compare/protocol.h). Graphs exclude the cost of launching
on the host, for all sides.
"""

import dataclasses
import traceback
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

import torch

from hpcdl import bench

ROTATED_BYTES = 200 << 20  # several times the 50 MB of L2
MOST_SETS = 64
OPTIONS = {"limit": 0.6, "patience": 1, "target": 0.004, "half_width": 0.004}

wanted: Callable[[str], Any] = lambda case: True  # bars.py --cases

Thunks = List[Callable[[], Any]]


@dataclasses.dataclass
class Bar:
    """One line of the table: how many times as fast as `peer` we are, or our share of a roof."""

    section: str
    case: str
    goal: Optional[float]  # least ratio; None: only shown
    peer: str = ""
    ours_us: float = 0
    peer_us: float = 0
    ratio: Optional[Dict[str, float]] = None  # median, low, high
    rate: str = ""  # our rate, in words
    share: Optional[float] = None  # share of the measured roof
    note: str = ""
    all_us: Dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def met(self) -> Optional[bool]:
        if self.goal is None:
            return None
        return self.ratio is not None and self.ratio["median"] >= self.goal


def sets_for(bytes_per_set: float) -> int:
    return int(min(MOST_SETS, max(1, -(-ROTATED_BYTES // max(bytes_per_set, 1)))))


class Measured:
    """Times of all sides, in microseconds a call, and ratios to the first."""

    def __init__(self, sides: Dict[str, Thunks], **options: Any):
        self.missing: Dict[str, str] = {}
        self.graphs = {}
        for name, thunks in sides.items():
            try:
                self.graphs[name] = one_by_one(thunks) if isinstance(thunks, Plain) else bench.captured(*thunks)
            except Exception as e:  # a peer that cannot run is reported, and the others are still compared
                torch.cuda.synchronize()
                self.missing[name] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]
                if name == next(iter(sides)):
                    raise
        units = {name: len(sides[name]) for name in self.graphs}
        self.result = bench.compare(self.graphs, device="cuda", units=units, **{**OPTIONS, **options})
        self.us = {name: s["median_ms"] * 1e3 for name, s in self.result["sides"].items()}
        self.first = next(iter(self.us))

    def ratio(self, peer: str) -> Dict[str, float]:
        r = self.result["ratios"][peer]
        return {k: r[k] for k in ("median", "low", "high")}

    def best(self, peers: List[str]) -> Optional[str]:
        here = [p for p in peers if p in self.us]
        return min(here, key=lambda p: self.us[p]) if here else None

    def bar(self, section: str, case: str, peer: Optional[str], goal: Optional[float], **more: Any) -> Bar:
        b = Bar(section, case, goal, ours_us=self.us[self.first], all_us=dict(self.us), **more)
        if peer is not None and peer in self.us:
            b.peer, b.peer_us, b.ratio = peer, self.us[peer], self.ratio(peer)
        else:
            b.peer, b.note = peer or "none", "; ".join(f"{k}: {v}" for k, v in self.missing.items())
        return b


class Plain(list):
    """Calls without graphs, launched one by one by the host."""


def one_by_one(thunks: Thunks) -> Callable[[], None]:
    def run() -> None:
        for call in thunks:
            call()

    return run


def copies(total_bytes: float, sets: int) -> Thunks:
    """Copies that read and write the same number of bytes as a case."""
    n = max(256, int(total_bytes) // 2 // 16 * 16)
    pairs = [(torch.ones(n, dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, device="cuda")) for _ in range(sets)]
    calls = [lambda d=d, s=s: d.copy_(s) for s, d in pairs]
    return Plain(calls) if sets == 1 else calls  # in a graph, copies of 512 MiB and more run at two thirds of their speed


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest, relative to the largest value of the other."""
    a, b = ours.detach().float().flatten(), theirs.detach().float().flatten()
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()


def require_same(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    allowed = 2.0**-13 if ours.dtype == torch.float32 else 2.0**-5
    found = difference(ours, theirs)
    if not found <= allowed:
        raise RuntimeError(f"{what}: differs by {found:.1e} of the largest value, more than {allowed:.1e}")


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, dynamic=False)


def guarded(section: str, case: str, goal: Optional[float], f: Callable[[], Iterable[Bar]]) -> Iterator[Bar]:
    """Yields the results of f, or a bar that says why it failed."""
    if not wanted(case):  # a variable of this module, which bars.py sets
        return
    try:
        yield from f()
    except Exception as e:
        traceback.print_exc()
        yield Bar(section, case, goal, note=f"failed: {type(e).__name__}: {str(e)[:300]}")
    finally:
        torch.cuda.empty_cache()
