// LoRA against the library peft: the same losses and adapters, and each reads the files of the other.

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

constexpr int kSteps = 20;
constexpr std::int64_t kRows = 3, kLength = 11, kVocab = 61;
constexpr double kLr = 1e-2, kDecay = 0.02;

/// Trains the adapter in argv[2] of the model in argv[1] on the tokens in argv[3], writes it to argv[4], and prints the
/// loss of each step, then that of the first batch with the result.
constexpr const char* kPeft = R"(
import sys, torch, transformers, peft
torch.manual_seed(0); torch.set_num_threads(1)
base = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager")
model = peft.PeftModel.from_pretrained(base, sys.argv[2], is_trainable=True)
model.eval()  # the dropout of GPT-2 is not part of its config.json
batches = [[int(w) for w in line.split()] for line in open(sys.argv[3])]
rows, lr, decay = int(sys.argv[5]), float(sys.argv[6]), float(sys.argv[7])
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
def loss_of(ids):
    ids = torch.tensor(ids).view(rows, -1)
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
for ids in batches:
    loss = loss_of(ids)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("loss", repr(loss.item()))
model.save_pretrained(sys.argv[4])
print("loss", repr(loss_of(batches[0]).item()))
)";

/// Rows of one token more than are trained on; steps take turns with two batches.
std::vector<std::int32_t> ids_of(int step) {
  std::uint32_t seed = 77 + static_cast<std::uint32_t>(step % 2);
  std::vector<std::int32_t> list(static_cast<std::size_t>(kRows * (kLength + 1)));
  for (auto& id : list) id = static_cast<std::int32_t>((seed = seed * 1664525u + 1013904223u) >> 16) % kVocab;
  return list;
}

struct Batch {
  explicit Batch(int step) {
    const auto ids = ids_of(step);
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t t = 0; t < kLength; ++t) {
        tokens.push_back(ids[static_cast<std::size_t>(r * (kLength + 1) + t)]);
        targets.push_back(ids[static_cast<std::size_t>(r * (kLength + 1) + t + 1)]);
      }
  }
  std::vector<std::int32_t> tokens, targets;
};

io::ModelConfig odd(io::Family family) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 2, c.heads = 3, c.kv_heads = family == io::Family::gpt2 ? 3 : 1, c.width = 36, c.ffn = 52, c.context = 16;
  c.vocab = kVocab, c.tied = family == io::Family::gpt2;
  models::resolve(c);
  return c;
}

struct Peft : ::testing::TestWithParam<io::Family> {};

TEST_P(Peft, trains_the_same_adapter) {
  const auto python = io::find_python("torch, transformers, peft");
  if (!python) GTEST_SKIP() << "no Python with torch, transformers and peft";
  const io::TempFolder tmp;
  models::LanguageModel::create(odd(GetParam()), 3, false).save(tmp / "base");
  Pool pool(2);
  models::AdapterOptions options{.method = models::AdapterMethod::lora, .r = 5, .alpha = 7};
  options.rs = GetParam() == io::Family::qwen3;
  options.keep = GetParam() == io::Family::llama ? std::vector<std::string>{"lm_head"} : std::vector<std::string>();
  auto model = models::LanguageModel::open_for_adapting(tmp / "base", options, 5, {DType::f32, &pool});
  model.save(tmp / "start");
  StepOptions step_options{.batch = kRows, .length = kLength};
  step_options.optimizer = AdamW::Args{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8F, .weight_decay = kDecay};
  step_options.clip = 0;
  std::vector<double> losses;
  std::string text;
  {
    TrainStep step(model, pool, step_options);
    for (int i = 0; i < kSteps; ++i) {
      const Batch b(i);
      step.accumulate(b.tokens, b.targets, i, 0);
      losses.push_back(step.update(kLr, kRows * kLength).loss / (kRows * kLength));
      text += fmt::format("{}\n", fmt::join(ids_of(i), " "));
    }
    const Batch b(0);
    losses.push_back(step.evaluate(b.tokens, b.targets).loss / (kRows * kLength));
  }
  model.save(tmp / "ours");
  io::write_file_atomic(tmp / "ids", text);
  bool ok = false;
  const auto said =
      io::run_python(*python, kPeft,
                     fmt::format("{} {} {} {} {} {} {}", (tmp / "base").string(), (tmp / "start").string(),
                                 (tmp / "ids").string(), (tmp / "theirs").string(), kRows, kLr, kDecay),
                     ok);
  ASSERT_TRUE(ok) << said;
  std::vector<double> wanted;
  std::istringstream words(said);
  for (std::string word; words >> word;)
    if (double x = 0; word == "loss" && words >> x) wanted.push_back(x);
  ASSERT_EQ(wanted.size(), losses.size()) << said;
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(losses[i], wanted[i], 1e-5 * wanted[i]) << "step " << i;
  EXPECT_LT(losses.back(), 0.95 * losses.front()) << "nothing was learned";

  const auto ours = io::TensorFolder::open(tmp / "ours" / models::kAdapterTensors),
             theirs = io::TensorFolder::open(tmp / "theirs" / models::kAdapterTensors);
  ASSERT_EQ(ours.tensors().size(), theirs.tensors().size());
  for (const auto& t : theirs.tensors()) {
    const View x = ours.at(t.name), y = theirs.at(t.name);
    ASSERT_EQ(x.spec(), y.spec()) << t.name;
    for (std::int64_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x.ptr<float>()[i], y.ptr<float>()[i], 1e-4) << t.name;
  }
  auto opened = models::LanguageModel::open(tmp / "base", {}, {.adapter = tmp / "theirs"});
  EXPECT_EQ(opened.config().vocab, kVocab);
}
INSTANTIATE_TEST_SUITE_P(families, Peft,
                         ::testing::Values(io::Family::llama, io::Family::gpt2, io::Family::qwen2, io::Family::qwen3,
                                           io::Family::phi3),
                         [](const auto& p) { return std::string(io::enum_name(p.param)); });

}  // namespace
}  // namespace hpcdl::train
