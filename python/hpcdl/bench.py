"""Comparisons of speed by the protocol of HPC-DL's lab, for your own code and for `hpcdl bench --vs torch`.

    from hpcdl import bench
    result = bench.compare({"mine": lambda: f(x), "theirs": lambda: g(x)})
    result["ratios"]["theirs"]      # {"median": 1.31, "low": 1.29, "high": 1.33, ...}: mine is 1.31 times as fast

`python -m hpcdl.bench REQUEST ANSWER` is started by the program `hpcdl bench`: it times the cases of a JSON file against
PyTorch on the same memory and writes the results. It restarts itself in the environment in which PyTorch is fastest.
"""

import functools
import json
import numbers
import os
import pathlib
import sys
from typing import Any, Callable, Dict, Optional

from . import _hpcdl

__all__ = ["captured", "compare", "copy"]


WHOLE, REAL = ("rounds", "seed"), ("target", "limit", "patience", "half_width", "settle")


def _checked(options: Dict[str, Any]) -> Dict[str, Any]:
    """The options in a form that JSON can hold, which has no infinity. Raises TypeError and ValueError for invalid options."""
    checked: Dict[str, Any] = {}
    for name, value in options.items():
        if name == "cache" and isinstance(value, str):
            checked[name] = value
            continue
        if name not in ("cache", *WHOLE, *REAL):
            raise TypeError(f"compare(): unknown option {name}")
        kind, expected = (str, "a word") if name == "cache" else (numbers.Integral, "an integer") if name in WHOLE else (numbers.Real, "a number")
        if not isinstance(value, kind):
            raise TypeError(f"[bench] {name} must be {expected}, got {value!r}")
        if name in ("target", "limit", "half_width") and not value > 0:
            raise ValueError(f"[bench] {name} must be more than 0, got {value}")
        if not value >= 0:
            raise ValueError(f"[bench] {name} must not be negative, got {value}")
        checked[name] = int(value) if name in WHOLE else min(float(value), sys.float_info.max)
    return checked


def compare(sides: Dict[str, Callable[[], Any]], *, device: str = "cpu", units: Optional[Dict[str, float]] = None, **options: Any) -> Dict[str, Any]:
    """Times every side. A ratio is the time of a side over the time of the first, in one round: above 1 the first is faster.

    In each round each side has a turn, in random order: one untimed call, then calls for about `target`
    seconds (0.01). Rounds continue until the 95 % interval of every ratio is within `half_width` (0.0075) or `limit` seconds
    (4) are over, or `patience` (5) times as long if a ratio is not narrow enough by then; `rounds` fixes their number.
    cache: "warm", "flushed" (before each call), or "rotated" (the sides take other operands for each call). settle:
    idle seconds before a turn, for libraries whose threads spin. seed: of the random order.

    device "cuda": times are the GPU's own, between events on PyTorch's current stream, and flushing writes four times L2.
    units: pieces of work in one call of a side; times are per piece.

    Returns sides (median_ms, min_ms, max_ms, low_ms, high_ms; [low, high] is the interval of the median), seconds (of each
    round), ratios (median, by the estimator of Hodges and Lehmann, min, max, low, high), rounds, cache, half_width, and
    settled: whether the interval became as narrow as that.
    """
    work = units or {}
    for name in set(work) - set(sides):
        raise ValueError(f"[bench] units: expected names of sides, got {name!r}")
    options = _checked(options)
    return json.loads(_hpcdl._compare([(name, call, float(work.get(name, 1))) for name, call in sides.items()], json.dumps(options), device))


def captured(*calls: Callable[[], Any]) -> Callable[[], None]:
    """Captures all calls as one CUDA graph, and returns a function that replays it, without the time that the host needs for launches.

    Before that, the calls run twice on the captured stream. Each result keeps its own memory. A backward pass of PyTorch
    can be captured if its forward pass ran on `capture_stream()`.
    """
    import torch

    torch.cuda.synchronize()
    with torch.cuda.stream(capture_stream()):
        for call in (*calls, *calls):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capture_stream()):
        results = [call() for call in calls]
    torch.cuda.synchronize()

    def replay() -> None:
        graph.replay()

    replay.results = results  # type: ignore[attr-defined]
    return replay


@functools.lru_cache(maxsize=None)
def capture_stream() -> Any:
    """The stream on which captured() makes its calls."""
    import torch

    return torch.cuda.Stream()


def copy(dst: Any, src: Any, streaming: bool = False) -> None:
    """Copies with all threads of the module, around the caches if `streaming`: the upper limit of anything that is bound by memory."""
    _hpcdl._copy(dst, src, streaming)


# glibc returns blocks above 128 KiB to the kernel and so has page faults for every temporary; frameworks that allocate
# as they go run 2-6x slower than they can. PyTorch's own documentation advises changing the allocator.
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": "17179869184",
    "MALLOC_TRIM_THRESHOLD_": "68719476736",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "ATEN_CPU_CAPABILITY": "avx512",
    "OPENBLAS_CORETYPE": "SkylakeX",
}


def mkl_shim() -> str:
    """PyTorch's MKL runs its AVX2 code on CPUs that are not Intel's; preloading this lets it run at its best."""
    path = pathlib.Path(_hpcdl.__file__).parent / "libmkl_as_intel.so"
    return str(path) if path.exists() else ""


def tuned_environment(threads: int) -> Dict[str, str]:
    """The environment in which the peers are fastest on this machine."""
    env = dict(os.environ, **TUNED, OMP_NUM_THREADS=str(threads), HPCDL_THREADS=str(threads))
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    if "avx512" not in cpuinfo:
        del env["ATEN_CPU_CAPABILITY"], env["OPENBLAS_CORETYPE"]
    if "AuthenticAMD" in cpuinfo and mkl_shim():
        env["LD_PRELOAD"] = mkl_shim()
    return env


def restart_tuned(threads: int, arguments: "list[str]") -> None:
    """Restarts this interpreter with `arguments` in tuned_environment(), unless it runs there already."""
    if os.environ.get("HPCDL_BENCH_TUNED"):
        return
    os.execve(sys.executable, [sys.executable, *arguments], dict(tuned_environment(threads), HPCDL_BENCH_TUNED="1"))


def _import_torch(answer: Dict[str, Any], threads: int) -> Any:
    try:
        import torch
    except ImportError as e:
        answer["missing"]["torch"] = str(e)
        return None
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = True  # cuDNN's fastest engine of each convolution
    torch.backends.cudnn.allow_tf32 = False  # f32 is f32, as in our ops
    answer["peers"]["torch"] = {"version": torch.__version__, "file": torch.__file__, "threads": torch.get_num_threads(),
                                "environment": {k: os.environ[k] for k in (*TUNED, "LD_PRELOAD") if k in os.environ}}
    return torch


def _peers_of(mine: Any, case: Dict[str, Any], vs: "list[str]") -> "tuple[Dict[str, Any], Dict[str, str]]":
    """The calls of the peers that can compute a case, and why the others cannot."""
    from . import _bench_torch

    calls, missing = {}, {}
    if "torch" in vs:
        peer = _bench_torch.counterpart(mine, **case)
        (missing if isinstance(peer, str) else calls)["torch"] = peer
    if "triton" in vs:
        from . import _bench_triton

        kernel = None if case["backward"] else _bench_triton.FORWARD.get(case["op"])
        if kernel is None:
            missing["triton"] = "no Triton kernel was written for this op"
        else:
            calls["triton"] = _bench_torch.checked(mine, kernel, case["op"], case["dtype"])
    return calls, missing


def _one_case(case: Dict[str, Any], protocol: Dict[str, Any], vs: "list[str]", device: str) -> Dict[str, Any]:
    mine = _hpcdl._BenchCase(case["op"], case["shape"], case["dtype"], case["backward"], device)
    calls, missing = _peers_of(mine, case, vs)
    if not calls:
        return {"missing": missing}
    as_timed = captured if device != "cpu" else lambda call: call
    sides = {"hpcdl": as_timed(mine.run), **{name: as_timed(peer.call) for name, peer in calls.items()}}
    result = compare(sides, device=device, **protocol)
    del result["seconds"]
    return dict(result, missing=missing, differences={name: peer.difference for name, peer in calls.items()})


def _answered(case: Dict[str, Any], request: Dict[str, Any], vs: "list[str]", device: str) -> Dict[str, Any]:
    try:
        return _one_case(case, request["protocol"], vs, device)
    except (Exception, SystemExit) as e:  # of many drawn shapes, one may lack memory, or be refused by PyTorch
        if not request.get("go_on"):
            raise
        return {"missing": {name: f"failed: {e}" for name in vs}}


def _answer(request: Dict[str, Any]) -> Dict[str, Any]:
    answer: Dict[str, Any] = {"peers": {}, "missing": {}, "cases": []}
    device, vs = request.get("device", "cpu"), list(request["vs"])
    _hpcdl.set_threads(request["threads"])
    torch = _import_torch(answer, request["threads"])
    if "triton" in vs and device == "cpu":
        answer["missing"]["triton"] = "computes only on GPUs: use --device cuda"
        vs.remove("triton")
    elif "triton" in vs:
        try:
            import triton

            answer["peers"]["triton"] = {"version": triton.__version__, "file": triton.__file__}
        except ImportError as e:
            answer["missing"]["triton"] = str(e)
            vs.remove("triton")
    if device != "cpu" and torch is not None and not torch.cuda.is_available():
        answer["missing"]["torch"] = "this PyTorch sees no GPU"
        torch = None
    if "torch" not in request["vs"]:
        answer["peers"].pop("torch", None), answer["missing"].pop("torch", None)
    if torch is None:  # all peers need its tensors
        vs = []
    for i, case in enumerate(request["cases"]):
        if vs and sys.stderr.isatty():
            print(f"\r\x1b[K{i + 1}/{len(request['cases'])} {', '.join(vs)}: {case['op']} {case['shape']} {case['dtype']}", end="", file=sys.stderr, flush=True)
        answer["cases"].append(_answered(case, request, vs, device) if vs else {})
    if vs and sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return answer


def _main(request_file: str, answer_file: str) -> None:
    request = json.loads(pathlib.Path(request_file).read_text())
    if request.get("device", "cpu") == "cpu":
        restart_tuned(request["threads"], ["-W", "ignore", "-m", "hpcdl.bench", request_file, answer_file])
    pathlib.Path(answer_file).write_text(json.dumps(_answer(request)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m hpcdl.bench REQUEST.json ANSWER.json  (started by `hpcdl bench --vs torch`)")
    _main(sys.argv[1], sys.argv[2])
