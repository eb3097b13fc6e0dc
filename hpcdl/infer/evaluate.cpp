#include "hpcdl/infer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/instance.h"

namespace hpcdl::infer {
namespace {

/// Inputs: tokens and targets; output: their loss.
std::shared_ptr<const Pass> loss_of(const models::LanguageModel& model, std::int64_t length,
                                    const nn::ForwardOptions& options) {
  return model.programs().pass(fmt::format("loss {} {}", length, options.key()), [&] {
    Graph g({.inference = true});
    const Spec ids{{1, length}, DType::i32};
    const std::vector<Var> in{g.input("tokens", ids), g.input("targets", ids, SlotRole::targets)};
    return Pass::of(g, in, {model.loss(g, in[0], in[1], options)});
  });
}

void check_tokens(const models::LanguageModel& model, std::span<const std::int32_t> tokens) {
  const auto vocab = model.config().vocab;
  require(tokens.size() >= 2, "eval", "{} tokens are too few: a prediction needs at least two", tokens.size());
  for (auto id : tokens)
    require(id >= 0 && id < vocab, "eval",
            "token {} is not in the model's vocabulary of {}: tokenizer and model do not belong together", id, vocab);
}

/// `sum`: of the losses of all predictions.
EvalResult result_of(double sum, std::int64_t predictions) {
  const double loss = sum / static_cast<double>(predictions);
  require(std::isfinite(loss), "eval",
          "the loss is {}: the weights hold NaN or overflow; check them with `hpcdl inspect --check`", loss);
  return {loss, std::exp(loss), predictions};
}

}  // namespace

EvalResult evaluate(const models::LanguageModel& model, Pool& pool, std::span<const std::int32_t> tokens,
                    const nn::ForwardOptions& options, const std::function<void(std::int64_t)>& progress) {
  check_tokens(model, tokens);
  StepParams params;
  Stream stream(model.device(), pool, &params);
  std::map<std::int64_t, Instance> programs;
  const auto predictions = static_cast<std::int64_t>(tokens.size()) - 1;
  const auto window = std::min<std::int64_t>(model.config().context, predictions);
  double sum = 0;
  for (std::int64_t at = 0; at < predictions; at += window) {
    const auto n = std::min(window, predictions - at);
    auto found = programs.find(n);
    if (found == programs.end())
      found = programs.emplace(n, Instance(*loss_of(model, n, options), nullptr, model.device())).first;
    const auto& exe = found->second;
    copy(stream, exe.input(0), View(tokens.data() + at, exe.input(0).spec()));
    copy(stream, exe.input(1), View(tokens.data() + at + 1, exe.input(1).spec()));
    exe.run(stream);
    float loss = 0;
    copy(stream, Tensor(&loss, exe.output(0).spec()), exe.output(0));
    sum += static_cast<double>(loss);
    if (progress) progress(at + n);
  }
  return result_of(sum, predictions);
}

EvalResult evaluate_in_pages(const models::LanguageModel& model, Pool& pool, std::span<const std::int32_t> tokens,
                             const PagedEvaluation& options, const std::function<void(std::int64_t)>& progress) {
  check_tokens(model, tokens);
  const auto predictions = static_cast<std::int64_t>(tokens.size()) - 1,
             window = std::min<std::int64_t>(model.config().context - 1, predictions);
  require(window >= 1, "eval", "the model's context of {} holds no prediction: it takes two tokens",
          model.config().context);
  Engine engine(model, pool,
                {.context = window + 1, .reuse_prefixes = false, .kv = options.kv, .ranks = options.ranks});
  double sum = 0;
  for (std::int64_t at = 0; at < predictions; at += window) {
    const auto part = tokens.subspan(static_cast<std::size_t>(at))
                          .first(static_cast<std::size_t>(std::min(window, predictions - at) + 1));
    engine.submit({.prompt = {part.begin(), part.end()}, .prompt_logprobs = 0, .on_end = [&](const End& e) {
                     require(e.reason != End::Reason::failed, "eval", "{}", e.message);
                     for (const auto& t : e.prompt_logprobs) sum -= static_cast<double>(t.logprob);
                   }});
    engine.run();
    if (progress) progress(at + std::ssize(part) - 1);
  }
  return result_of(sum, predictions);
}

}  // namespace hpcdl::infer
