#!/usr/bin/env python3
"""Collectives on two CPU ranks of this host against the best of Open MPI's algorithms, and on two hosts of two ranks (network namespaces joined
at 1 Gbit/s) against MPI_Allreduce: the bars of the distribution, as one JSON file.

    comm.py HPCDL [--out FILE] [--seconds S] [--only host|hosts|sweep]

malloc keeps freed memory (MALLOC_*), from which the buffers of Open MPI gain most. Every number is a median of rounds in which our
call and MPI's take turns in one process; if several algorithms of MPI are tried, each has its own launch, which also measures ours again, and the
one that is worst for us counts. Needs root for --only hosts; its namespaces are removed afterwards.
--only sweep: every size from 4 B to 64 MB (all_reduce: 256) and every algorithm of the four collectives, into comm_sweep.json, and pictures comm_COLLECTIVE.svg beside it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import common

KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647", "MALLOC_TOP_PAD_": "67108864",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Algorithms of coll_tuned, by their numbers; 0 is its own choice.
TUNED = {"all_reduce": ("allreduce", ["default", "1 linear", "2 nonoverlapping", "3 recursive doubling", "4 ring", "5 segmented ring", "6 Rabenseifner"]),
         "reduce_scatter": ("reduce_scatter_block", ["default", "1 linear", "2 recursive doubling", "3 recursive halving", "4 butterfly"]),
         "all_gather": ("allgather", ["default", "1 linear", "2 Bruck", "3 recursive doubling", "4 ring", "5 neighbour exchange", "6 two processes"]),
         "all_to_all": ("alltoall", ["default", "1 linear", "2 pairwise", "3 modified Bruck", "4 linear with synchronization", "5 two processes"])}


def one(command, environment=None):
    """The result of `hpcdl bench comm` for one algorithm and size."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **KEEP, **(environment or {})})
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def one_host(hpcdl, seconds):
    out = []
    mpirun = ["mpirun", "-n", "2", "--bind-to", "core", hpcdl, "bench", "comm", "--json", "--seconds", str(seconds)]
    goals = {"window": {"4K": 4, "1M": 5, "64M": 3.5}, "private": {"4K": 0.95, "1M": 0.95, "64M": 0.95}}

    def against_all(collective, size, memory):
        native, names = TUNED[collective]
        side, tried = ["--collective", collective, "--bytes", size, "--algorithm", "shared", "--memory", memory], []
        for k, name in enumerate(names):
            forced = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", f"OMPI_MCA_coll_tuned_{native}_algorithm": str(k)} if k else {}
            tried.append({**one(mpirun + side + ([] if k else ["--check"]), forced), "against": name})
        worst = min(tried, key=lambda r: r["ratio"])
        out.append({**worst, "max_error": tried[0]["max_error"], "goal": goals[memory][size]})

    for size in ("4K", "1M", "64M"):
        for memory in ("window", "private"):
            against_all("all_reduce", size, memory)
        out.append({**one([*mpirun, "--bytes", size, "--algorithm", "ring"]), "against": "default", "goal": None})
    for collective in ("reduce_scatter", "all_gather", "all_to_all"):
        for size in ("4K", "1M", "64M"):
            against_all(collective, size, "private")
    return out


class Hosts:
    """Two network namespaces and a switch between them."""

    def __init__(self, rate):
        self.id, self.rate, self.made, self.folder = f"hpcdl{os.getpid()}", rate, [], tempfile.TemporaryDirectory()

    def __enter__(self):
        ip = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)
        switch = self.namespace("sw")
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for i in range(2):
            host = self.namespace(str(i))
            ip("link", "add", f"v{i}", "netns", host, "type", "veth", "peer", "name", f"p{i}", "netns", switch)
            ip("-n", switch, "link", "set", f"p{i}", "master", "br0", "up", "mtu", "9000")
            ip("-n", host, "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"v{i}")
            ip("-n", host, "link", "set", f"v{i}", "up", "mtu", "9000")
            ip("-n", host, "link", "set", "lo", "up")
            subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", f"v{i}", "root", "tbf", "rate", self.rate, "burst", "256kb", "latency", "20ms"], check=True)
        agent = pathlib.Path(self.folder.name) / "agent"
        agent.write_text(f'#!/bin/sh\ni=$(( ${{1##*.}} - 1 )); shift; exec ip netns exec {self.id}$i unshare --uts -- sh -c "hostname h$i; $*"\n')
        agent.chmod(0o755)
        self.agent = str(agent)
        return self

    def namespace(self, name):
        subprocess.run(["ip", "netns", "add", self.id + name], check=True)
        self.made.append(self.id + name)
        return self.id + name

    def __exit__(self, *_):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name])
        self.folder.cleanup()

    def mpirun(self, each, words):
        return ["ip", "netns", "exec", self.id + "0", "unshare", "--uts", "--", "sh", "-c", 'hostname h0; exec "$@"', "sh",
                "mpirun", "--bind-to", "none", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", self.agent, "--mca", "pml", "ob1", "--mca", "btl", "tcp,vader,self",
                "--mca", "mpi_yield_when_idle", "1", "--mca", "btl_tcp_if_include", "10.77.0.0/24", "--mca", "oob_tcp_if_include", "10.77.0.0/24",
                *[w for name in KEEP if name.startswith("MALLOC") for w in ("-x", name)], "-H", f"10.77.0.1:{each},10.77.0.2:{each}", "-np", str(2 * each), *words]


def two_hosts(hpcdl, seconds):
    with Hosts("1gbit") as hosts:
        found = one(hosts.mpirun(2, [hpcdl, "bench", "comm", "--bytes", "16M", "--algorithm", "hierarchical", "--rounds", "7", "--json", "--check"]))
    return [{**found, "against": "default", "link": "1 Gbit/s", "goal": 1.5}]


COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
KEPT = ("collective", "algorithm", "memory", "bytes", "us", "busbw", "native_us", "ratio", "ratio_low", "ratio_high", "max_error")


def sweep(hpcdl, seconds, folder):
    """Two ranks of this host; each collective in its own launch."""
    rows, machine = [], {}
    for collective in COLLECTIVES:
        picture = ["--svg", str(folder / f"comm_{collective}.svg"), "--max", "256M" if collective == "all_reduce" else "64M"]
        found = one(["mpirun", "-n", "2", "--bind-to", "core", hpcdl, "bench", "comm", "--json", "--check", "--seconds", str(seconds), "--collective", collective, *picture])
        machine = found["machine"]
        rows += [{k: float(f"{r[k]:.4g}") if isinstance(r[k], float) else r[k] for k in KEPT if k in r} for r in found["rows"]]
    text = ",\n".join(json.dumps(r) for r in rows)
    what = "hpcdl bench comm, 2 ranks on one host, fp32, against MPI's own call in the same rounds; malloc keeps what it was given"
    (folder / "comm_sweep.json").write_text(f'{{"what": {json.dumps(what)}, "machine": {json.dumps(machine)}, "rows": [\n{text}\n]}}\n')
    for collective in COLLECTIVES:
        ours = [r for r in rows if r["collective"] == collective and r["algorithm"] == "shared" and r["ratio"]]
        for memory in ("private", "window"):
            print(f"{collective:>15} shared {memory:>8}  " + "  ".join(f"{r['bytes']}: {r['ratio']:.2f}" for r in ours if r["memory"] == memory))


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("hpcdl")
    words.add_argument("--out")
    words.add_argument("--seconds", type=float, default=0.5)
    words.add_argument("--only", choices=["host", "hosts", "sweep"])
    o = words.parse_args()
    hpcdl = str(pathlib.Path(o.hpcdl).resolve())
    _, short = common.cpu()
    if o.only == "sweep":
        return sweep(hpcdl, o.seconds, pathlib.Path(o.out) if o.out else common.ROOT / "bench" / "results" / short)
    out = pathlib.Path(o.out) if o.out else common.ROOT / "bench" / "results" / short / "comm.json"
    kept = json.loads(out.read_text())["rows"] if o.only and out.exists() else []
    fresh = ([] if o.only == "hosts" else one_host(hpcdl, o.seconds)) + ([] if o.only == "host" else two_hosts(hpcdl, o.seconds))
    done = {(r["hosts"],) for r in fresh}
    data = {"machine": common.machine(), "mpi": subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout.split("\n")[0],
            "malloc": {k: v for k, v in KEEP.items() if k.startswith("MALLOC")}, "rows": [r for r in kept if (r["hosts"],) not in done] + fresh}
    out.write_text(json.dumps(data, indent=1) + "\n")
    for r in data["rows"]:
        met = "" if r["goal"] is None else "met" if r["ratio"] >= r["goal"] else f"MISSED {r['goal']}"
        print(f"{r['collective']:>15} {r['algorithm']:>12} {r['memory']:>8} {r['bytes']:>9}  {r['us']:10.2f} us  native {r['native_us']:10.2f} us ({r['against']})  x{r['ratio']:.2f} {met}")


if __name__ == "__main__":
    sys.exit(main())
