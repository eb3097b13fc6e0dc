"""hpcdl.Engine: texts as iterators, many at a time."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest

from common import Case, need

np = need("numpy")
import hpcdl

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = "".join(f"The {a} {b} sees the {c}. " for a in ("old", "red", "new") for b in ("fox", "sea", "sun") for c in ("hill", "moon", "tree"))
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


class Engines(Case):
    @classmethod
    def setUpClass(cls):
        program = os.environ.get("HPCDL_BIN")
        if not program:
            raise unittest.SkipTest("HPCDL_BIN is not set")
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        (root / "text.txt").write_text(TEXT * 8)
        train = [program, "train", "--out", str(root / "run"), f"--data.text={root / 'text.txt'}", "--data.vocab_size=300", "--model.family=llama"]
        sizes = ["--model.layers=2", "--model.heads=2", "--model.width=32", "--model.context=128", "--train.steps=3", "--train.batch=2"]
        subprocess.run(train + sizes, check=True, capture_output=True)
        cls.model = root / "run" / "model"
        (cls.model / "chat_template.jinja").write_text(CHAT)
        cls.engine = hpcdl.Engine(cls.model, texts=4)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_ids_come_one_by_one(self):
        text = self.engine.submit([1, 2, 3], tokens=5, ignore_eos=True)
        self.assertIsNone(text.end)
        ids = list(text)
        self.assertEqual((len(ids), text.ids, text.end.reason, text.end.prompt_tokens), (5, ids, "length", 3))
        self.assertEqual(ids, list(self.engine.submit([1, 2, 3], tokens=5, sampling={"ignore_eos": True})))
        self.assertEqual(text.text, self.engine.decode(ids))

    def test_weights_may_be_read_in_several_ways(self):
        want = self.engine.submit([1, 2, 3], tokens=5, ignore_eos=True).result()
        resident = hpcdl.Engine(self.model, texts=1, load="resident")
        self.assertEqual(resident.submit([1, 2, 3], tokens=5, ignore_eos=True).result(), want)
        for wrong in ({"load": "fast"}, {"load": "mapped", "ram": 1 << 30}, {"load": "direct", "ram": 1000}, {"ram": -1}):
            with self.assertRaises(ValueError):
                hpcdl.Engine(self.model, **wrong)

    def test_many_texts_are_those_of_one(self):
        prompts = [f"The {w}" for w in ("old", "red", "new", "fox", "sea", "sun")]
        alone = [self.engine.submit(p, tokens=7, ignore_eos=True).result() for p in prompts]
        texts = [self.engine.submit(p, tokens=7, ignore_eos=True) for p in prompts]
        self.assertEqual([t.result() for t in reversed(texts)], alone[::-1])
        found = {}
        threads = [threading.Thread(target=lambda i=i: found.update({i: self.engine.submit(prompts[i], tokens=7, ignore_eos=True).result()})) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([found[i] for i in range(6)], alone)

    def test_speculation_leaves_ids_as_they_are(self):
        prompt = [5, 6, 7, 8] * 5
        want = list(self.engine.submit(prompt, tokens=40, ignore_eos=True))
        for spec in ("ngram", self.model):
            engine = hpcdl.Engine(self.model, texts=1, spec=spec)
            self.assertEqual(list(engine.submit(prompt, tokens=40, ignore_eos=True)), want)

    def test_sampling(self):
        options = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
        a = list(self.engine.submit("The", tokens=8, **options))
        self.assertEqual(a, list(self.engine.submit("The", tokens=8, **options)))
        self.assertNotEqual(a, list(self.engine.submit("The", tokens=8, **{**options, "seed": 6})))
        self.assertEqual(set(self.engine.submit("The", tokens=4, allowed_ids=[7])), {7})
        text = self.engine.submit("The", tokens=3, logprobs=2, ignore_eos=True)
        for id, (logprob, top) in zip(text, text.logprobs):
            self.assertEqual((len(top), top[id]), (2, logprob))
            self.assertLess(logprob, 0)

    def test_several_texts_of_a_prompt(self):
        options = {"tokens": 8, "temperature": 1.0, "ignore_eos": True}
        texts = self.engine.submit("The", n=3, seed=5, **options)
        self.assertEqual([list(t) for t in texts], [list(self.engine.submit("The", seed=s, **options)) for s in (5, 6, 7)])
        self.assertEqual(len(self.engine.submit("The", n=1, **options)), 1)

    def test_a_string_ends_a_text(self):
        whole = self.engine.submit("The", tokens=20, ignore_eos=True).result()
        for stop in (whole[3:5], ["never", whole[3:5]]):
            text = self.engine.submit("The", tokens=20, ignore_eos=True, stop=stop)
            self.assertEqual(text.result(), whole[: whole.index(whole[3:5])])
            self.assertEqual(text.end.reason, "stop")
        self.assertEqual(self.engine.submit("The", tokens=20, ignore_eos=True, stop="never").result(), whole)

    def test_a_prompt_is_scored(self):
        ids = self.engine.encode("The old fox")
        text = self.engine.submit(ids, tokens=1, prompt_logprobs=1)
        list(text)
        self.assertEqual([id for id, _, _ in text.prompt_logprobs], ids[1:])
        for _, logprob, top in text.prompt_logprobs:
            self.assertLessEqual(logprob, max(top.values()))

    def test_a_salt_keeps_texts_apart(self):
        prompt = self.engine.encode(TEXT)[:100]
        cached = []
        for salt in ("mine", "mine", "yours"):
            text = self.engine.submit(prompt, tokens=1, cache_salt=salt)
            list(text)
            cached.append(text.end.cached_tokens)
        self.assertEqual((cached[0], cached[2]), (0, 0))
        self.assertGreater(cached[1], 0)

    def test_the_folder_says_how_to_sample(self):
        config = self.model / "generation_config.json"
        config.write_text(json.dumps({"do_sample": True, "temperature": 1.5, "top_k": 7, "max_new_tokens": 6, "num_beams": 4}))
        self.addCleanup(config.unlink)
        with self.assertWarnsRegex(UserWarning, "num_beams is not supported"):
            engine = hpcdl.Engine(self.model, texts=1)
        rules = {"temperature": 1.5, "top_k": 7, "ignore_eos": True, "seed": 3}
        want = list(self.engine.submit("The", tokens=6, **rules))
        self.assertEqual(list(engine.submit("The", ignore_eos=True, seed=3)), want)
        greedy = list(self.engine.submit("The", tokens=6, ignore_eos=True))
        self.assertEqual(list(engine.submit("The", ignore_eos=True, temperature=0)), greedy)

    def test_forms(self):
        text = self.engine.submit("The", tokens=60, regex="(red|blue)[0-9]{3}").result()
        self.assertRegex(text, re.compile("^(red|blue)[0-9]{3}$"))
        schema = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": False}
        self.assertIn(json.loads(self.engine.submit("The", tokens=60, json_schema=schema).result())["a"], (1, 22))
        with self.assertRaisesRegex(ValueError, "exclude each other"):
            self.engine.submit("The", regex="a", grammar='root ::= "a"')

    def test_chat(self):
        messages = [{"role": "user", "content": "The fox"}]
        chat = self.engine.submit(messages, tokens=4, ignore_eos=True)
        self.assertEqual(list(chat), list(self.engine.submit("<user>The fox<assistant>", tokens=4, ignore_eos=True)))

    def test_a_text_that_is_dropped_frees_its_pages(self):
        before = self.engine.state
        text = self.engine.submit("The", tokens=90, ignore_eos=True)
        next(text)
        self.assertEqual(self.engine.state["running"], 1)
        del text
        after = self.engine.state
        self.assertEqual((after["running"], after["waiting"]), (0, 0))
        self.assertEqual(after["free_pages"] + after["cached_pages"], before["pages"])
        text = self.engine.submit("The", tokens=90, ignore_eos=True)
        next(text)
        text.cancel()
        self.assertEqual(text.end.reason, "cancelled")

    def test_a_window_lets_texts_be_longer_than_the_context(self):
        engine = hpcdl.Engine(self.model, texts=1, kv_window=60)
        self.assertEqual(engine.state["pages"], 2)
        text = engine.submit("The", tokens=600, ignore_eos=True)
        self.assertEqual(len(list(text)), 600)
        with self.assertRaisesRegex(ValueError, "kv-window"):
            hpcdl.Engine(self.model, kv_window=60, kv_sink=4)

    def test_mistakes_are_named(self):
        for error, match, call in (
            (TypeError, "did you mean .temperature.|temperature", lambda: self.engine.submit("The", temprature=1)),
            (ValueError, "expected 1 to", lambda: self.engine.submit("The", tokens=1000)),
            (ValueError, "vocabulary", lambda: self.engine.submit([100000])),
            (TypeError, "list of token ids", lambda: self.engine.submit(5)),
            (ValueError, "empty", lambda: self.engine.submit([])),
            (ValueError, "temperature", lambda: self.engine.submit("The", temperature=-1)),
            (ValueError, "expected 1 or more", lambda: self.engine.submit("The", n=0)),
            (ValueError, "an empty one", lambda: self.engine.submit("The", stop="")),
            (ValueError, "prompt_logprobs", lambda: self.engine.submit("The", prompt_logprobs=-2)),
            (ValueError, "texts", lambda: hpcdl.Engine(self.model, texts=0)),
            (ValueError, "model", lambda: hpcdl.Engine("/no/such/folder")),
            (ValueError, "kv: expected", lambda: hpcdl.Engine(self.model, kv="int8")),
            (ValueError, "load: expected one of auto, mapped", lambda: hpcdl.Engine(self.model, load="mmap")),
            (ValueError, "dtype: expected one of auto, f32", lambda: hpcdl.Engine(self.model, dtype="f64")),
            (ValueError, "ram", lambda: hpcdl.Engine(self.model, ram=-1)),
        ):
            with self.assertRaisesRegex(error, match):
                call()


if __name__ == "__main__":
    unittest.main()
