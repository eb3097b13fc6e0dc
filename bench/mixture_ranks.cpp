// Training of a mixture of 8 experts, of which each token goes through 2, on RANKS GPUs in bf16, with the line protocol of
// bench/peers/mixture_torch.py. One process for each GPU.
//   mixture_ranks RANKS dense|whole|divided [BATCH CONTEXT WIDTH LAYERS EXPERT_FFN STEPS]
// dense: an MLP with the work of two experts instead; whole: every GPU has all experts; divided: the GPUs divide them.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/fork_ranks.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/expert.h"
#include "hpcdl/rng.h"
#include "hpcdl/train/train_step.h"

namespace {

using namespace hpcdl;

constexpr std::int64_t kVocab = 32000;

struct Bench {
  int ranks;
  std::string kind;
  std::int64_t batch, length, width, layers, ffn;
  int steps;
};

io::ModelConfig config_of(const Bench& b) {
  io::ModelConfig c{.family = io::Family::llama,
                    .layers = b.layers,
                    .heads = b.width / 64,
                    .width = b.width,
                    .context = b.length,
                    .vocab = kVocab,
                    .tied = false};
  if (b.kind == "dense") {
    c.ffn = 2 * b.ffn;
    return c;
  }
  c.family = io::Family::mixtral;
  c.experts = 8, c.chosen_experts = 2, c.expert_ffn = b.ffn, c.balance = 0.01;
  return c;
}

class Trainer {
 public:
  Trainer(const Bench& b, const comm::Group& world)
      : b_(b),
        world_(world),
        experts_(b.kind == "divided" && world.size() > 1 ? world.split(0, world.rank(), "ep") : comm::Group()),
        model_(models::LanguageModel::create(config_of(b), 1, true, {}, {},
                                             std::make_shared<const parallel::ExpertParallel>(experts_))),
        step_(model_, pool_, options(), Device::cuda(world.rank())),
        tokens_(static_cast<std::size_t>(b.batch * b.length + 1)) {
    const Rng rng{7, static_cast<std::uint64_t>(world.rank())};
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<std::int32_t>(rng.below(i, kVocab));
    steps(5);
  }

  /// The time of some steps, starting when all ranks are ready.
  nlohmann::json timed() {
    parallel::any_rank(world_, false);
    const auto start = std::chrono::steady_clock::now();
    const double loss = steps(b_.steps);
    parallel::any_rank(world_, false);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / b_.steps;
    return {{"ms", seconds * 1e3},
            {"loss", loss},
            {"tokens_per_second", static_cast<double>(b_.ranks * b_.batch * b_.length) / seconds}};
  }

 private:
  train::StepOptions options() const {
    train::StepOptions o;
    o.batch = b_.batch, o.length = b_.length, o.forward.compute = DType::bf16;
    o.data = world_, o.experts = experts_, o.share_batch = b_.kind != "dense";
    o.reduce.buckets = {.cap = std::int64_t{200} << 20, .first = std::int64_t{80} << 20};
    return o;
  }
  void queue_pass() {
    step_.accumulate({tokens_.data(), tokens_.size() - 1}, {tokens_.data() + 1, tokens_.size() - 1}, number_++, 0);
  }
  /// As in `hpcdl train`, each pass is queued before waiting for the previous step.
  double steps(int n) {
    double loss = 0;
    queue_pass();
    for (int i = 1; i <= n; ++i) {
      step_.queue_update(3e-4, b_.batch * b_.length);
      if (i < n) queue_pass();
      const auto r = step_.result();
      loss = r.loss / static_cast<double>(r.valid_tokens);
    }
    return loss;
  }

  const Bench& b_;
  comm::Group world_, experts_;
  Pool pool_{4};
  models::LanguageModel model_;
  train::TrainStep step_;
  std::vector<std::int32_t> tokens_;
  std::int64_t number_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const std::string_view kind = argc > 2 ? argv[2] : "";
  if (kind != "dense" && kind != "whole" && kind != "divided")
    return std::fprintf(
               stderr,
               "usage: mixture_ranks RANKS dense|whole|divided [BATCH CONTEXT WIDTH LAYERS EXPERT_FFN STEPS]\n"),
           2;
  const Bench b{.ranks = std::atoi(argv[1]),
                .kind = std::string(kind),
                .batch = number(3, 16),
                .length = number(4, 1024),
                .width = number(5, 1024),
                .layers = number(6, 8),
                .ffn = number(7, 1792),
                .steps = number(8, 5)};
  return bench::fork_ranks(b.ranks, [&](const comm::Group& world) {
    Trainer t(b, world);
    bench::for_each_line(world, [&] { return t.timed(); });
  });
}
