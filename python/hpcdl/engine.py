"""Generating texts with a model: many at a time, each an iterator."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from . import _hpcdl


class End(NamedTuple):
    """Why a text ended, and how long it took."""

    reason: str  # "eos", "length", "stop" or "cancelled"
    prompt_tokens: int
    new_tokens: int
    cached_tokens: int  # of the prompt, whose keys and values were there already
    time_to_first_token_ms: float
    tokens_per_second: float


class Text(Iterator[int]):
    """The token ids of one text, as they come. Dropping it cancels the text.

    The engine works while somebody iterates, for all texts: iterating over one advances the others, too.
    """

    def __init__(self, engine: "Engine", text: Any):
        self._engine, self._text = engine, text
        self.ids: "list[int]" = []
        #: For each id, if they were asked for: its log-probability, and those of the most likely tokens by id.
        self.logprobs: "list[tuple[float, dict[int, float]]]" = []

    def __next__(self) -> int:
        token = self._text.next()
        if token is None:
            raise StopIteration
        self.ids.append(token[0])
        self.logprobs.append((token[1], dict(token[2])))
        return token[0]

    def result(self) -> str:
        """Waits for the end; the text of all new tokens."""
        for _ in self:
            pass
        return self.text

    @property
    def text(self) -> str:
        """The text of the tokens so far, without special tokens; it ends before a stop string."""
        before = self._text.stopped_text()
        return self._engine.decode(self.ids) if before is None else before

    @property
    def prompt_logprobs(self) -> "list[tuple[int, float, dict[int, float]]]":
        """Of the tokens of the prompt but the first, if they were asked for, once the text has ended: each token, its
        log-probability, and those of the most likely tokens by id."""
        return [(id, logprob, dict(top)) for id, logprob, top in self._text.prompt_logprobs()]

    @property
    def end(self) -> Optional[End]:
        """None while the text goes on."""
        found = self._text.end()
        return None if found is None else End(*found)

    def cancel(self) -> None:
        """Ends the text now; its memory serves other texts."""
        self._text.cancel()


Prompt = Union[str, "Sequence[int]", "Sequence[Mapping[str, Any]]"]


class Engine:
    """A model that generates texts, several at a time.

    model: a Hugging Face folder with its tokenizer, or a name in the local cache; also one that `hpcdl quantize` wrote.
    texts: how many are continued at a time; others wait. context: the most tokens of a text, prompt included; 0: the
    model's. kv: the type of keys and values, bf16, f32, f16, i8 or f8 (8 bits with scales), or auto: that of
    activations. Half of the free memory at most is used for them. kv_window, kv_sink: keep them for the last
    and the first so many tokens of a text only, which then may be longer than the context; 0: for all. spec: "ngram", or the folder of a smaller model
    with the same vocabulary: several tokens are proposed and checked together, with the same result. dtype: f32, bf16
    or f16, to which weights are converted and in which texts are computed; auto: weights stay as they are. ram: bytes
    of memory for weights; layers that do not fit stream from the files in every pass; 0: no limit. vram: the same of a
    GPU's memory, for layers that stream from host memory. load: "mapped",
    "direct", "resident" or "auto", as `hpcdl generate --load`. Safe from many threads, which take turns.

        engine = hpcdl.Engine("TinyLlama")
        for token in engine.submit("Once upon a time", tokens=50, temperature=0.8): ...
        print(engine.submit([{"role": "user", "content": "Hello"}]).result())
    """

    def __init__(
        self,
        model: "str | os.PathLike[str]",
        *,
        device: str = "cpu",
        texts: int = 16,
        context: int = 0,
        threads: int = 0,
        invariant: bool = False,
        kv: str = "auto",
        kv_window: int = 0,
        kv_sink: int = 0,
        spec: "str | os.PathLike[str]" = "none",
        dtype: str = "auto",
        load: str = "auto",
        ram: int = 0,
        vram: int = 0,
    ):
        self._engine = _hpcdl._Engine.load(
            {
                "model": os.fspath(model),
                "device": device,
                "texts": texts,
                "context": context,
                "threads": threads,
                "invariant": invariant,
                "kv": kv,
                "kv_window": kv_window,
                "kv_sink": kv_sink,
                "spec": os.fspath(spec),
                "dtype": dtype,
                "load": load,
                "ram": ram,
                "vram": vram,
            }
        )
        if self._engine.warning:
            warnings.warn(self._engine.warning, stacklevel=2)

    def submit(
        self,
        prompt: Prompt,
        tokens: Optional[int] = None,
        *,
        sampling: "Mapping[str, Any] | None" = None,
        priority: int = 0,
        json_schema: "str | Mapping[str, Any] | None" = None,
        regex: "str | None" = None,
        grammar: "str | None" = None,
        tools: "Sequence[Any] | None" = None,
        n: "int | None" = None,
        stop: "str | Sequence[str]" = (),
        prompt_logprobs: "int | None" = None,
        cache_salt: str = "",
        **options: Any,
    ) -> "Text | list[Text]":
        """Queues a text of up to `tokens` new tokens and returns at once; with `n`, a list of so many texts whose seeds
        follow each other and which share the prompt.

        What is not said here is as generation_config.json of the model says; without it, texts are greedy and of 100
        tokens.
        prompt: a string, token ids, or the messages of a chat, for which the model needs a chat template. sampling and
        options: temperature (0: always the most likely token), top_k, top_p, min_p, typical_p,
        repetition_penalty, presence_penalty, frequency_penalty, logit_bias (by id), allowed_ids, banned_ids,
        min_tokens, stop_ids, ignore_eos, seed, logprobs (N: of the N most likely tokens, too). json_schema, regex or
        grammar (GBNF): the form that the text must have. stop: strings before which the text ends. prompt_logprobs:
        like logprobs, for the tokens of the prompt. cache_salt: only texts with the same one share the keys and values
        of equal beginnings. ValueError or TypeError for what does not fit.
        """
        forms = [(n, f) for n, f in (("schema", json_schema), ("regex", regex), ("gbnf", grammar)) if f is not None]
        if len(forms) > 1:
            raise ValueError("[Engine.submit] json_schema, regex and grammar exclude each other: give one")
        form, text = forms[0] if forms else ("", "")
        if not isinstance(text, str):
            text = json.dumps(text)
        options = {**(sampling or {}), **options}
        ids = self._ids(prompt, tools)
        stops = [stop] if isinstance(stop, str) else list(stop)
        scored = -1 if prompt_logprobs is None else prompt_logprobs

        def one(index: int) -> Text:
            more = (stops, scored, cache_salt, index)
            return Text(self, self._engine.submit(ids, tokens, options, priority, form, text, *more))

        if n is None:
            return one(0)
        if n < 1:
            raise ValueError(f"[Engine.submit] n = {n}: expected 1 or more")
        return [one(i) for i in range(n)]

    def _ids(self, prompt: Prompt, tools: "Sequence[Any] | None") -> Any:
        if isinstance(prompt, str):
            return self.encode(prompt)
        if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            return self._engine.chat(json.dumps(prompt), json.dumps(tools), "{}")
        return prompt

    def encode(self, text: str) -> "list[int]":
        """The token ids of a prompt."""
        return self._engine.encode(text)

    def decode(self, ids: "Sequence[int]", skip_special: bool = True) -> str:
        """The text of token ids."""
        return self._engine.decode(ids, skip_special)

    @property
    def context(self) -> int:
        """The most tokens of a text, prompt included."""
        return self._engine.context

    @property
    def state(self) -> "dict[str, int]":
        """How many texts wait and run, and how many pages of 64 tokens there are, are free, and are kept for reuse."""
        return dict(zip(("waiting", "running", "pages", "free_pages", "cached_pages"), self._engine.state()))
