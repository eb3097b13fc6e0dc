#include "hpcdl/infer/pass_runner.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace hpcdl::infer {

namespace {

constexpr std::size_t kMostPrograms = 256;
constexpr std::int64_t kCapturedExactly = 64;  // tokens up to which a GPU has programs for powers of two only

std::int64_t power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}
std::int64_t power_of_four(std::int64_t n) {
  const auto power = power_of_two(n);
  return std::countr_zero(static_cast<std::uint64_t>(power)) % 2 == 0 ? power : 2 * power;
}

BatchLayout largest(const PassRunner::Sizes& s) {
  const auto tokens = power_of_two(std::max(s.budget, s.sequences));
  return {.tokens = tokens,
          .sequences = power_of_four(s.sequences + padding_rows(tokens / 2)),
          .pages = s.text_pages,
          .pool_pages = s.pages,
          .window_pages = s.window_pages,
          .kv = s.kv};
}

}  // namespace

PassRunner::PassRunner(const models::LanguageModel& model, Pool& pool, const Sizes& sizes)
    : model_(model),
      stream_(model.device(), pool),
      sizes_(sizes),
      pool_(layers_of_pool(model, largest(sizes)), model.device()),
      memory_(largest(sizes), model.device()),
      ids_(2 * largest(sizes).tokens * std::int64_t{sizeof(std::int32_t)}, model.device()) {}

/// Numbers of tokens that there are programs for: at most a quarter apart, and all up to 8; on a GPU, which captures
/// them, fewer small ones.
std::int64_t PassRunner::bucket(std::int64_t tokens) const {
  const auto power = power_of_two(tokens);
  if (stream_.device().is_cuda() && tokens <= kCapturedExactly) return power;
  const auto apart = std::max<std::int64_t>(1, power / 8);
  return (tokens + apart - 1) / apart * apart;
}

/// Beside prompts, a few more sequences and rows of logits cost little, and a further program much.
BatchLayout PassRunner::layout(std::int64_t tokens, std::int64_t sequences, std::int64_t rows, bool single) const {
  const auto all = bucket(tokens), some = power_of_four(sequences + padding_rows(all - tokens));
  return {.tokens = all,
          .sequences = single ? all : some,
          .pages = sizes_.text_pages,
          .pool_pages = sizes_.pages,
          .window_pages = sizes_.window_pages,
          .context = sizes_.text_pages * kPageTokens < sizes_.context ? sizes_.context : 0,
          .rows = rows == 0        ? 0
                  : rows == tokens ? all
                                   : std::min(all, std::max(some, power_of_four(rows))),
          .single = single,
          .vocab = sizes_.vocab,
          .kv = sizes_.kv};
}

/// In the shared arena. A larger one replaces it together with the programs in it, so that there is never more than one.
PassRunner::Program& PassRunner::program(const BatchLayout& l) {
  const Key key(l.tokens, l.sequences, l.rows, l.single, l.rules.changes > 0, l.adapters, l.logprobs);
  if (const auto found = programs_.find(key); found != programs_.end()) {
    found->second.used = ++passes_;
    return found->second;
  }
  ++recorded_;
  if (programs_.size() >= kMostPrograms) {
    stream_.synchronize();
    programs_.erase(std::ranges::min_element(programs_, {}, [](const auto& p) { return p.second.used; }));
  }
  const auto made = batch_pass(model_, l, sizes_.numerics);
  auto bindings = made->bindings;
  pool_.bind(bindings);
  memory_.bind(l, bindings);
  if (l.rules.changes > 0) rules_->bind(l.rows, bindings);
  if (arena_ && arena_->bytes() < made->planned->plan.arena_bytes) {
    stream_.synchronize();
    programs_.clear(), arena_.reset();
  }
  Instance instance(made->planned, std::move(bindings), arena_, stream_.device());
  arena_ = instance.arena();
  return programs_.emplace(key, Program{std::move(instance), ++passes_}).first->second;
}

/// On a GPU, one launch from the second run on: launching its kernels one by one takes longer than they run.
void PassRunner::run(Program& p) {
  const bool captures = stream_.device().is_cuda() && !p.instance.captured();
  was_first_ = !p.warm || captures;
  if (captures && p.warm) p.instance.capture(stream_);
  p.warm = true;
  p.instance.run(stream_);
}

void PassRunner::start(const Step& step) {
  layout_ = step.layout;
  if (!step.changes.empty()) take_changes(step.changes);
  last_ = &program(layout_);
  if (step.continues) memory_.advance(stream_);
  else memory_.set(stream_, layout_, step.rows);
  if (!step.rules.empty()) memory_.set_rules(stream_, step.rules);
  if (!step.wanted.empty()) memory_.set_wanted(stream_, step.wanted);
  const Tensor to = last_->instance.input(0);
  copy(stream_, to, View(step.tokens.data(), to.spec()));
  run(*last_);
}

/// Larger memory for them replaces the programs that have rules.
void PassRunner::take_changes(std::span<const RowRules> changes) {
  if (!rules_) rules_.emplace(largest(sizes_).tokens, sizes_.vocab, stream_.device());
  if (!rules_->fits(changes)) {
    stream_.synchronize();
    std::erase_if(programs_, [](const auto& p) { return std::get<4>(p.first); });
    rules_->grow(changes);
  }
  rules_->set(stream_, layout_.rows, changes);
  layout_.rules = rules_->room();
}

void PassRunner::deliver(int place) { memory_.deliver_and_advance(stream_, ids(place), last_->instance.input(0)); }

/// Of decoding, and of prompts beside few and many texts, of which most have their next token read.
std::vector<BatchLayout> PassRunner::usual_layouts() const {
  std::vector<BatchLayout> list;
  const auto add = [&](BatchLayout l) {
    for (const bool adapters : {false, true}) {
      l.adapters = adapters;
      if ((!adapters || !model_.adapters().empty()) && std::ranges::find(list, l) == list.end()) list.push_back(l);
    }
  };
  add(layout(sizes_.budget, 1, 0, false));
  for (std::int64_t n = 1; n <= sizes_.sequences; ++n) add(layout(n, n, n, true));
  for (std::int64_t n = 2; n <= sizes_.budget; ++n)
    for (std::int64_t texts = 1; texts <= std::min(n - 1, sizes_.sequences); texts *= 4)
      add(layout(n, texts, texts, false));
  std::ranges::stable_sort(list, std::greater(), &BatchLayout::tokens);  // the first one needs the largest arena
  return list;
}

void PassRunner::warm() {
  for (const auto& l : usual_layouts()) {
    auto& p = program(l);
    for (int i = 0; stream_.device().is_cuda() && i < 2; ++i) {
      memory_.set(stream_, l, {});
      if (l.rows > 0) memory_.set_rules(stream_, std::vector<SampleRule>(static_cast<std::size_t>(l.rows)));
      const Tensor tokens = p.instance.input(0);
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(l.tokens));
      copy(stream_, tokens, View(ids.data(), tokens.spec()));
      run(p);
    }
  }
}

std::vector<const Instance*> PassRunner::programs(std::int64_t prompt_tokens) {
  std::vector<BatchLayout> list{layout(1, 1, 1, true)};
  for (auto left = prompt_tokens; left > 1; left -= sizes_.budget) {
    const auto tokens = std::min(left, sizes_.budget);
    const auto l = layout(tokens, 1, tokens < left ? 0 : 1, tokens == 1);
    if (std::find(list.begin(), list.end(), l) == list.end()) list.push_back(l);
  }
  for (const auto& l : list) program(l);  // a larger arena may replace those before it
  std::vector<const Instance*> made;
  for (const auto& l : list) made.push_back(&program(l).instance);
  return made;
}

}  // namespace hpcdl::infer
