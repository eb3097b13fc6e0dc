#include "hpcdl/infer/packed_passes.h"

#include <algorithm>
#include <utility>

#include "hpcdl/ops/logprobs/logprobs.h"

namespace hpcdl::infer {
namespace {

/// Few sizes, since each needs programs of its own.
std::int64_t logprobs_of_pass(std::span<const PackedPasses::Part> parts) {
  int most = -1;
  for (const auto& p : parts) most = std::max(most, p.logprobs);
  return most > 0 ? Logprobs::kMost : most;
}

}  // namespace

PackedPasses::PackedPasses(const models::LanguageModel& model, Pool& pool, const Sizes& sizes, RankLink* ranks)
    : model_(model), ranks_(ranks) {
  on_all_ranks(Order::Kind::open, std::as_bytes(std::span(&sizes, 1)), [&] { runner_.emplace(model, pool, sizes); });
}

/// f() is what this rank does, and the order what the others do.
template <class F> void PackedPasses::on_all_ranks(Order::Kind kind, std::span<const std::byte> body, F&& f) {
  if (ranks_) ranks_->lead({kind, {body.begin(), body.end()}}, f);
  else f();
}

void PackedPasses::wait(const Stream& s) {
  if (ranks_) ranks_->wait(s);
  else s.synchronize();
}

void PackedPasses::start(std::span<const Part> parts, std::span<const std::int32_t> tokens) {
  std::int64_t token = 0, row = 0, all = 0, read = 0;
  for (const auto& p : parts) all += p.tokens, read += p.read;
  auto layout = runner_->layout(all, std::ssize(parts), read, all == std::ssize(parts));
  layout.adapters = std::ranges::any_of(parts, [](const Part& p) { return p.adapter >= 0; });
  if (stream().device().is_cuda() && layout.rows > 0) layout.logprobs = logprobs_of_pass(parts);
  std::vector<BatchRow> rows;
  std::vector<std::uint64_t> texts;
  first_rows_.clear();
  for (const auto& p : parts) {
    rows.push_back({.pages = p.pages,
                    .length = p.before,
                    .tokens = p.tokens,
                    .read = p.read,
                    .adapter = p.adapter,
                    .left = p.left});
    texts.push_back(p.text);
    token += p.tokens, row += p.read;
    first_rows_.push_back(static_cast<std::size_t>((layout.chooses_rows() ? row : token) - p.read));
  }
  std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
  ids.resize(static_cast<std::size_t>(layout.tokens));
  const auto rules = rules_of(parts, layout);
  const auto changes = changes_of(parts, layout);
  const auto wanted = wanted_of(parts, layout);
  const Step step{.layout = layout,
                  .continues = layout.single && texts == single_,
                  .rows = rows,
                  .tokens = ids,
                  .rules = rules,
                  .changes = changes,
                  .wanted = wanted};
  single_ = layout.single ? std::move(texts) : std::vector<std::uint64_t>();
  if (ranks_) ranks_->lead({Order::Kind::step, to_bytes(step)}, [&] { runner_->start(step); });
  else runner_->start(step);
}

std::vector<SampleRule> PackedPasses::rules_of(std::span<const Part> parts, const BatchLayout& layout) const {
  if (!stream().device().is_cuda() || layout.rows == 0) return {};
  std::vector<SampleRule> rules(static_cast<std::size_t>(layout.rows));
  for (std::size_t i = 0; i < parts.size(); ++i)
    for (std::int64_t r = 0; r < parts[i].read; ++r) {
      auto& rule = rules[first_rows_[i] + static_cast<std::size_t>(r)] = parts[i].rule;
      rule.index += static_cast<std::uint64_t>(r);
    }
  return rules;
}

/// Empty if the rules of all rows change nothing.
std::vector<RowRules> PackedPasses::changes_of(std::span<const Part> parts, const BatchLayout& layout) const {
  const auto any = [](const Part& p) { return std::ranges::any_of(p.changes, &RowRules::any); };
  if (!stream().device().is_cuda() || std::ranges::none_of(parts, any)) return {};
  std::vector<RowRules> changes(static_cast<std::size_t>(layout.rows));
  for (std::size_t i = 0; i < parts.size(); ++i)
    std::ranges::copy(parts[i].changes, changes.begin() + static_cast<std::ptrdiff_t>(first_rows_[i]));
  return changes;
}

/// Empty if the pass gives no log-probabilities.
std::vector<std::int32_t> PackedPasses::wanted_of(std::span<const Part> parts, const BatchLayout& layout) const {
  if (layout.logprobs < 0) return {};
  std::vector<std::int32_t> ids(static_cast<std::size_t>(layout.rows), -1);
  for (std::size_t i = 0; i < parts.size(); ++i)
    std::ranges::copy(parts[i].wanted, ids.begin() + static_cast<std::ptrdiff_t>(first_rows_[i]));
  return ids;
}

void PackedPasses::copy_page(PagePair to, PagePair from) {
  const PagePair pages[] = {to, from};
  on_all_ranks(Order::Kind::copy_page, std::as_bytes(std::span(pages)), [&] { runner_->copy_page(to, from); });
}

std::span<float> PackedPasses::logits() {
  if (runner_->layout().rows == 0) return {};
  const Tensor logits = runner_->last()->output(0);
  if (!logits.device().is_cuda()) return {logits.ptr<float>(), static_cast<std::size_t>(logits.size())};
  if (logits_.bytes() < logits.bytes()) logits_ = Pinned(logits.bytes(), stream().device());
  copy_to_pinned(stream(), logits_.data(), logits);
  wait(stream());
  return {logits_.as<float>(), static_cast<std::size_t>(logits.size())};
}

std::span<const std::int32_t> PackedPasses::chosen() {
  const Tensor ids = runner_->last()->output(1);
  copy_to_pinned(stream(), runner_->ids(0), ids);
  copy_logprobs(place_ = 0);
  wait(stream());
  return {runner_->ids(0), static_cast<std::size_t>(ids.size())};
}

/// Queues it, if the pass has any.
void PackedPasses::copy_logprobs(int place) {
  if (runner_->layout().logprobs < 0) return;
  const Tensor scored = runner_->last()->output(2);
  if (logprobs_.bytes() < 2 * scored.bytes()) logprobs_ = Pinned(2 * scored.bytes(), stream().device());
  copy_to_pinned(stream(), logprobs_.as<std::byte>() + place * scored.bytes(), scored);
}

std::span<const TokenLogprob> PackedPasses::logprobs_of(std::size_t row) const {
  const auto& l = runner_->layout();
  if (l.logprobs < 0) return {};
  const auto width = static_cast<std::size_t>(1 + l.logprobs), rows = static_cast<std::size_t>(l.rows);
  return {logprobs_.as<TokenLogprob>() + (static_cast<std::size_t>(place_) * rows + row) * width, width};
}

void PackedPasses::repeat() {
  on_all_ranks(Order::Kind::repeat, {}, [&] { runner_->repeat(); });
}

void PackedPasses::deliver(int place) {
  if (!ahead_) ahead_.emplace(Ahead{.reader = Stream(stream().device(), stream().pool()), .found = {}});
  single_.clear();  // the memory is a token ahead of the texts from now on
  on_all_ranks(Order::Kind::deliver, std::as_bytes(std::span(&place, 1)), [&] { runner_->deliver(place); });
  copy_logprobs(place);
  ahead_->found[place].record(stream());
}

std::span<const std::int32_t> PackedPasses::delivered(int place) {
  ahead_->found[place].wait(ahead_->reader);
  wait(ahead_->reader);
  place_ = place;
  return {runner_->ids(place), static_cast<std::size_t>(runner_->layout().tokens)};
}

void PackedPasses::warm() {
  on_all_ranks(Order::Kind::warm, {}, [&] { runner_->warm(); });
  wait(stream());
  single_.clear();
}

}  // namespace hpcdl::infer
