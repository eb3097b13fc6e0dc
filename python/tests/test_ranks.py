"""How bench/gpu/ranks.py evaluates the tokens per second that its sides report; needs no GPU."""

import argparse
import contextlib
import io
import os
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "gpu"))

import ranks  # noqa: E402

ARGS = argparse.Namespace(bucket_mb=400, first_mb=160, rounds=3, steps=5, no_torch=False, limit=1)


def bars(rates, counts, **args):
    """The rows of train() by case, when each side reports its rate twice and an outlier once: medians count. Also the commands."""
    asked = {}

    def in_turns(commands, rounds, limit, torch):
        asked.update(commands, **(torch or {}))
        return {name: [{"tokens_per_second": x} for x in (rates[name], 1e9, rates[name])] for name in asked if name in rates}

    table = ranks.Table()
    with mock.patch.object(ranks, "in_turns", in_turns), contextlib.redirect_stdout(io.StringIO()):
        ranks.train(table, counts, argparse.Namespace(**{**vars(ARGS), **args}))
    return {r["case"]: r for r in table.rows}, asked


class TestEfficiency(unittest.TestCase):
    TWO = {"hpcdl alone 0": 600e3, "hpcdl alone 1": 500e3, "hpcdl 2": 990e3, "hpcdl 2, buckets 25:apart": 1000e3, "torch 2": 900e3, "torch alone 0": 500e3, "torch alone 1": 450e3}

    def test_of_the_first_of_the_mean_and_of_the_slowest(self):
        self.assertEqual(ranks.efficiencies(990.0, [600.0, 500.0]), {"the first": 0.825, "their mean": 0.9, "the slowest": 0.99})
        same = ranks.efficiencies(1920.0, [500.0] * 4)
        self.assertEqual(set(same.values()), {0.96})

    def test_rows(self):
        rows, _ = bars(self.TWO, [2])
        ours = "efficiency, 2 GPUs, buckets of 160 to 400 MB"
        for case, ratio in ((ours, 0.825), (f"{ours}, against their mean alone", 0.9), (f"{ours}, against the slowest alone", 0.99), ("beside 2 GPUs with 25:apart", 0.99),
                            ("GPT-2 124M bf16 B=64, 2 GPUs", 1.1), ("PyTorch's DDP: efficiency, 2 GPUs", 0.9), ("PyTorch's DDP: efficiency, 2 GPUs, against the slowest alone", 1.0)):
            self.assertAlmostEqual(rows[case]["ratio"], ratio, 12, case)
        self.assertEqual({case: r["met"] for case, r in rows.items() if r["goal"] is not None}, {ours: False, "GPT-2 124M bf16 B=64, 2 GPUs": True})

    def test_each_gpu_alone_and_two_of_four_against_theirs(self):
        four = {f"hpcdl alone {i}": x for i, x in enumerate((600e3, 400e3, 500e3, 500e3))}
        rows, asked = bars(four | {"hpcdl 2": 900e3, "hpcdl 4": 1600e3, "hpcdl 4, buckets 25:apart": 1600e3, "torch 4": 1600e3}, [2, 4])
        self.assertAlmostEqual(rows["efficiency, 2 GPUs, buckets of 160 to 400 MB, against their mean alone"]["ratio"], 0.9)
        self.assertAlmostEqual(rows["efficiency, 4 GPUs, buckets of 160 to 400 MB, against the slowest alone"]["ratio"], 1.0)
        self.assertEqual([asked[f"hpcdl {n}"][0][-1] for n in (2, 4)], ["400/160:beside"] * 2)
        self.assertFalse(any("PyTorch's" in case for case in rows), "there is no memory for it")
        self.assertEqual([asked[f"hpcdl alone {i}"][1]["CUDA_VISIBLE_DEVICES"] for i in range(4)], list("0123"))
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="5,7"):
            self.assertEqual(ranks.on_gpu(1)["CUDA_VISIBLE_DEVICES"], "7")

    def test_without_torch(self):
        rows, asked = bars({k: v for k, v in self.TWO.items() if "torch" not in k}, [2], no_torch=True)
        self.assertFalse(any("torch" in name for name in asked))
        self.assertEqual(len(rows), 4)


if __name__ == "__main__":
    unittest.main()
