// Random texts and random ids, in all the golden tokenizers, against the `tokenizers` library.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl::io {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden";

// Prints a line for each text: {"tokenizer", "text", "ids", "special", "decoded"}; and {"tokenizer", "ids", "decoded"}.
// Characters are older than Unicode 14, whose compatibility forms the library does not know.
constexpr const char* kScript = R"(
import json, pathlib, random, sys
from tokenizers import Tokenizer
folder = pathlib.Path(sys.argv[1])
rng = random.Random(11)
characters = [c for f in sorted(folder.glob("odd_text/*.txt")) for c in f.read_bytes().decode("utf-8", "ignore")]
words = (folder / "corpus.txt").read_text(encoding="utf-8").split(" ")
extra = ["<s>", "</s>", "[INST]", "[/INST]", "[SEP]", "<unk>", "\u2581", "\u2581\u2581", "##", "   ", "<0x41>", "n't", " 's", "\ufffd"]
def text():
    out = ""
    for _ in range(rng.randint(1, 40)):
        kind = rng.random()
        if kind < 0.4: out += rng.choice(words) + rng.choice([" ", "  ", "", "\n"])
        elif kind < 0.7: out += rng.choice(characters)
        elif kind < 0.9: out += chr(rng.choice([rng.randint(0, 0x3000), rng.randint(0x3000, 0x9FFF), rng.randint(0x1F300, 0x1F5FF)]))
        else: out += rng.choice(extra)
    return out
for name in sys.argv[2:]:
    t = Tokenizer.from_file(str(folder / (name + ".json")))
    for _ in range(400):
        one = text()
        ids = t.encode(one, add_special_tokens=False).ids
        print(json.dumps({"tokenizer": name, "text": one, "ids": ids, "special": t.encode(one).ids,
                          "decoded": t.decode(ids, skip_special_tokens=False)}))
    for _ in range(400):
        ids = [rng.randrange(t.get_vocab_size()) for _ in range(rng.randint(1, 12))]
        print(json.dumps({"tokenizer": name, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)}))
)";

TEST(tokenizer, equals_the_library_on_random_texts) {
  const auto python = find_python("tokenizers");
  if (!python) GTEST_SKIP() << "no Python with tokenizers";
  bool ok = false;
  const std::string names = "gpt2 llama3 qwen2 llama2 gemma mistral t5 unigram_bytes bert bert_cased";
  std::istringstream lines(run_python(*python, kScript, kGolden.string() + " " + names, ok));
  ASSERT_TRUE(ok) << lines.str().substr(0, 2000);
  std::optional<Tokenizer> t;
  std::string loaded;
  int compared = 0;
  for (std::string line; std::getline(lines, line); ++compared) {
    const auto want = nlohmann::json::parse(line);
    const auto name = want["tokenizer"].get<std::string>();
    if (name != loaded) t = Tokenizer::load(kGolden / ((loaded = name) + ".json"));
    const auto ids = want["ids"].get<std::vector<TokenId>>();
    if (want.contains("text")) {
      const auto text = want["text"].get<std::string>();
      ASSERT_EQ(t->encode(text), ids) << name << ": " << text;
      ASSERT_EQ(t->encode(text, true), want["special"].get<std::vector<TokenId>>()) << name << ": " << text;
    }
    // The library reads added tokens in the byte-level alphabet too, and so breaks those beyond ASCII.
    if (name == "qwen2") continue;
    ASSERT_EQ(t->decode(ids), want["decoded"].get<std::string>()) << name << ": " << line;
  }
  EXPECT_EQ(compared, 8000);
}

}  // namespace
}  // namespace hpcdl::io
