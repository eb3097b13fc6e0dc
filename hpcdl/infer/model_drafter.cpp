#include "hpcdl/infer/model_drafter.h"

#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {

namespace {

PackedPasses::Sizes of_draft(PackedPasses::Sizes s, const models::LanguageModel& model) {
  s.context = std::min(s.context, model.config().context), s.text_pages = pages_for(s.context);
  s.vocab = std::min(s.vocab, model.config().vocab);
  s.window_pages = 0;
  return s;
}

}  // namespace

ModelDrafter::ModelDrafter(const models::LanguageModel& model, Pool& pool, const PackedPasses::Sizes& sizes)
    : model_(model), sizes_(of_draft(sizes, model)), passes_(model, pool, sizes_), table_(sizes_.pages) {}

bool ModelDrafter::grow(Known& known, std::int64_t tokens) {
  const auto more = pages_for(tokens) - std::ssize(known.pages);
  if (tokens > sizes_.context || more > table_.available_pages()) return false;
  for (std::int64_t i = 0; i < more; ++i) known.pages.push_back(table_.take());
  return true;
}

/// Over the tokens that it has not read, as far as the budget goes.
ModelDrafter::Step ModelDrafter::reading(std::span<Text> texts) {
  Step step;
  auto budget = sizes_.budget;
  for (auto& t : texts) {
    auto& known = texts_[t.id];
    known.length = std::ssize(t.tokens), known.wanted = std::min(known.trust.next(), t.most), known.proposed = 0;
    const auto n = known.wanted == 0 ? 0 : std::min(known.length - known.done, budget);
    const auto ids = t.tokens.subspan(static_cast<std::size_t>(known.done), static_cast<std::size_t>(n));
    const bool all = known.done + n == known.length;
    const auto is_unknown = [&](std::int32_t id) { return id >= model_.config().vocab; };
    if (n == 0 || std::ranges::any_of(ids, is_unknown) || !grow(known, known.done + n + (all ? known.wanted - 1 : 0)))
      continue;
    step.texts.push_back(&t);
    step.parts.push_back(
        {.text = t.id, .pages = {known.pages}, .before = known.done, .tokens = n, .read = all ? 1 : 0, .rule = t.rule});
    step.ids.insert(step.ids.end(), ids.begin(), ids.end());
    known.done += n, budget -= n;
  }
  return step;
}

/// Over the last proposed tokens, where more are wanted.
ModelDrafter::Step ModelDrafter::continuing(std::span<Text> texts) {
  Step step;
  for (auto& t : texts) {
    auto& known = texts_[t.id];
    if (t.proposed.empty() || std::ssize(t.proposed) >= known.wanted) continue;
    auto rule = t.rule;
    rule.index += t.proposed.size();
    step.texts.push_back(&t);
    step.parts.push_back({.text = t.id, .pages = {known.pages}, .before = known.done++, .rule = rule});
    step.ids.push_back(t.proposed.back());
  }
  return step;
}

void ModelDrafter::run(const Step& step) {
  passes_.start(step.parts, step.ids);
  const bool on_gpu = passes_.stream().device().is_cuda();
  const bool reads = std::ranges::any_of(step.parts, [](const auto& p) { return p.read > 0; });
  const auto found = on_gpu && reads ? passes_.chosen() : std::span<const std::int32_t>();
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    if (step.parts[i].read == 0) continue;
    auto& known = texts_[step.parts[i].text];
    const auto row = passes_.first_rows()[i];
    const auto id = on_gpu ? found[row] : chosen(row, step.parts[i].rule);
    if (id < 0) known.wanted = 0;  // its logits are not finite
    else step.texts[i]->proposed.push_back(id), ++known.proposed;
  }
}

/// -1: the logits are not finite.
std::int32_t ModelDrafter::chosen(std::size_t row, const SampleRule& rule) {
  const auto logits = passes_.logits().subspan(row * passes_.width(), static_cast<std::size_t>(sizes_.vocab));
  const auto best = largest_logit(logits);
  return best < 0 ? -1 : sampler_.sample(logits, best, rule);
}

void ModelDrafter::propose(std::span<Text> texts) {
  passes_.interrupt();  // tokens that did not come true are overwritten
  if (const auto first = reading(texts); !first.parts.empty()) run(first);
  for (;;) {
    const auto step = continuing(texts);
    if (step.parts.empty()) break;
    run(step);
  }
}

void ModelDrafter::learn(std::uint64_t id, std::int64_t accepted) {
  auto& known = texts_.at(id);
  known.trust.learn(known.proposed, accepted);
  known.done = known.length + std::min(accepted, known.proposed - 1);
}

void ModelDrafter::forget(std::uint64_t id) {
  const auto found = texts_.find(id);
  if (found == texts_.end()) return;
  for (auto& pages = found->second.pages; !pages.empty(); pages.pop_back()) table_.release(pages.back());
  texts_.erase(found);
}

}  // namespace hpcdl::infer
