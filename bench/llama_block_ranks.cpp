// A block of Llama 3 8B (d = 4096, 32 heads over 8 of keys and values, MLP 14336), forward and backward in bf16 with
// f32 weights, computed by RANKS GPUs together: 4 x 2048 tokens, between a small embedding and a small head. For every
// line on stdin the milliseconds of a captured pass; with several schemes each is measured separately. beside:
// gradients of weights on a second stream, under which the exchange of dx is hidden.
//   llama_block_ranks RANKS[xLAYERS] [conjugate|sequence|naive[:beside]]...

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/fork_ranks.h"
#include "hpcdl/comm/device_group.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/rng.h"

namespace {

using namespace hpcdl;
using parallel::TensorParallel;

constexpr int kPasses = 10;  // passes per line

constexpr std::int64_t kBatch = 4, kLength = 2048;

int layers = 1;  // the difference of three and one gives the time of a layer without embedding, last norm and head

struct Kind {
  TensorParallel::Scheme scheme = TensorParallel::conjugate;
  bool beside = true;
  std::string name;
};

class Block {
 public:
  Block(const comm::Group& world, const Kind& kind)
      : world_(world),
        s_(Device::cuda(world.rank()), pool_, &params_),
        sharing_(world.size() > 1 ? std::make_shared<TensorParallel>(world, kind.scheme) : nullptr),
        model_(models::LanguageModel::create(config(), 1, true, sharing_)) {
    model_.to_device(s_);
    model_.keep_copies(DType::bf16);
    model_.round_copies(s_);
    Graph g({.weights_beside = kind.beside});
    const Spec spec{{kBatch, kLength}, DType::i32};
    const Var tokens = g.input("tokens", spec), targets = g.input("targets", spec);
    loss_ = g.keep(model_.loss(g, tokens, targets, {.compute = DType::bf16, .head_gradient_now = !sharing_}));
    g.backward(loss_);
    exe_.emplace(g.finish(), nullptr, s_.device());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(spec.size()));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(Rng{7, 0}.below(i, 512));
    copy(s_, exe_->tensor(tokens), View(ids.data(), spec));
    copy(s_, exe_->tensor(targets), View(ids.data(), spec));
    exe_->run(s_);
    comm::synchronize(world_, s_);
    exe_->capture(s_);
    passes();
  }

  nlohmann::json timed() {
    parallel::any_rank(world_, false);
    const auto start = std::chrono::steady_clock::now();
    passes();
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / kPasses;
    float sum = 0;
    copy(s_, Tensor(&sum, exe_->tensor(loss_).spec()), exe_->tensor(loss_));
    return {{"ms", ms}, {"loss", sum / static_cast<float>(kBatch * kLength)}};
  }

 private:
  static io::ModelConfig config() {
    return {.family = io::Family::llama,
            .layers = layers,
            .heads = 32,
            .width = 4096,
            .context = kLength,
            .kv_heads = 8,
            .ffn = 14336,
            .vocab = 512,
            .tied = false};
  }
  void passes() {
    for (int i = 0; i < kPasses; ++i) exe_->run(s_);
    comm::synchronize(world_, s_);
  }

  comm::Group world_;
  Pool pool_{4};
  StepParams params_;
  Stream s_;
  std::shared_ptr<const TensorParallel> sharing_;
  models::LanguageModel model_;
  Var loss_;
  std::optional<Instance> exe_;
};

void run_rank(const std::vector<Kind>& kinds, const comm::Group& world) {
  if (kinds.size() == 1) {
    Block block(world, kinds[0]);
    return bench::for_each_line(world, [&] { return block.timed(); });
  }
  for (const auto& kind : kinds) {
    Block block(world, kind);
    for (int i = 0; i < 5; ++i) {
      auto j = block.timed();
      j["kind"] = kind.name;
      if (world.rank() == 0) std::cout << j.dump() << std::endl;
    }
  }
}

Kind kind_of(const std::string& text) {
  const auto colon = text.find(':');
  for (const auto s : {TensorParallel::conjugate, TensorParallel::sequence, TensorParallel::naive})
    if (text.substr(0, colon) == nn::scheme_name(s)) return {s, colon != std::string::npos, text};
  fail_usage("bench", "unknown scheme \"{}\": expected conjugate, sequence or naive", text);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2)
    return std::fprintf(stderr, "usage: llama_block_ranks RANKS[xLAYERS] [conjugate|sequence|naive[:beside]]...\n"), 2;
  std::vector<Kind> kinds;
  for (int i = 2; i < argc; ++i) kinds.push_back(kind_of(argv[i]));
  if (kinds.empty()) kinds.emplace_back();
  if (const char* x = std::strchr(argv[1], 'x')) layers = std::atoi(x + 1);
  if (layers < 1) fail_usage("bench", "expected RANKS or RANKSxLAYERS, got \"{}\"", argv[1]);
  return bench::fork_ranks(std::atoi(argv[1]), [&](const comm::Group& world) { run_rank(kinds, world); });
}
