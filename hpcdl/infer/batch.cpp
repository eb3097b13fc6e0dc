#include "hpcdl/infer/batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/models/decoder.h"
#include "hpcdl/models/inference_type.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/ops/logit_rules/logit_rules.h"
#include "hpcdl/ops/logprobs/logprobs.h"
#include "hpcdl/ops/sample/sample.h"

namespace hpcdl::infer {
namespace {

constexpr const char *kPositions = "batch.positions", *kStarts = "batch.starts", *kLengths = "batch.lengths",
                     *kRead = "batch.read", *kAdapters = "batch.adapters", *kRules = "batch.rules",
                     *kWanted = "batch.wanted";
constexpr std::array kSlots{"batch.slots", "batch.window_slots"}, kPages{"batch.pages", "batch.window_pages"};

struct BatchSpecs {
  Spec positions, slots, starts, lengths, read, pages, rules, wanted;
  explicit BatchSpecs(const BatchLayout& l)
      : positions{{l.tokens}, DType::i32},
        slots{{l.tokens}, DType::i64},
        starts{{l.sequences + 1}, DType::i32},
        lengths{{l.sequences}, DType::i32},
        read{{l.rows}, DType::i32},
        pages{{l.sequences, l.pages}, DType::i32},
        rules{{l.rows, Sample::kRuleWords}, DType::i32},
        wanted{{l.rows}, DType::i32} {}
};

std::size_t groups_of(const BatchLayout& l) { return l.window_pages > 0 ? 2 : 1; }

/// In the key of a pass.
std::string key_of(const Numerics& n) {
  return fmt::format("{}{}{}", static_cast<int>(n.products), n.atomic_sums ? 1 : 0, n.row_invariant ? 1 : 0);
}

Var leaf(Graph& g, const std::string& name, const Spec& spec) { return g.constant(name, Tensor(nullptr, spec)); }

nn::PagedBatch record_batch(Graph& g, const models::LanguageModel& model, const BatchLayout& l) {
  const BatchSpecs specs(l);
  nn::PagedBatch b{.layers = {},
                   .positions = leaf(g, kPositions, specs.positions),
                   .starts = leaf(g, kStarts, specs.starts),
                   .lengths = leaf(g, kLengths, specs.lengths),
                   .adapters = l.adapters ? leaf(g, kAdapters, specs.positions) : Var(),
                   .most_queries = l.single ? 1 : l.tokens,
                   .context = l.context > 0 ? l.context : l.pages * kPageTokens};
  std::array<nn::PagedBatch::Places, 2> places;
  for (std::size_t i = 0; i < groups_of(l); ++i)
    places[i] = {.slots = leaf(g, kSlots[i], specs.slots), .pages = leaf(g, kPages[i], specs.pages)};
  const auto layers = layers_of_pool(model, l);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    b.layers.push_back({.keys = leaf(g, KvPool::name_of_keys(number), layers[i].spec),
                        .values = leaf(g, KvPool::name_of_values(number), layers[i].spec),
                        .places = places[layers[i].window ? 1 : 0]});
  }
  return b;
}

}  // namespace

BatchLayout BatchLayout::of_one(std::int64_t tokens, std::int64_t capacity, std::int64_t rows) {
  return {.tokens = tokens,
          .sequences = 1,
          .pages = pages_for(capacity),
          .pool_pages = pages_for(capacity),
          .rows = rows,
          .single = tokens == 1};
}

std::int64_t padding_rows(std::int64_t tokens) { return pages_for(tokens); }

DType type_of_inference(const models::LanguageModel& model) { return models::inference_type(model, model.device()); }

Spec pool_spec(const models::LanguageModel& model, std::int64_t pool_pages, DType kv) {
  const auto& c = model.config();
  const std::int64_t ranks = model.sharing() ? model.sharing()->size() : 1;  // each stores its heads
  return pool_of(pool_pages, models::kv_heads_of_rank(c.kv_heads, ranks), c.head_dim,
                 kv == DType::none ? type_of_inference(model) : kv);
}

std::vector<KvPool::Layer> layers_of_pool(const models::LanguageModel& model, const BatchLayout& l) {
  const auto& c = model.config();
  std::vector<KvPool::Layer> layers;
  for (std::size_t i = 0; i < static_cast<std::size_t>(c.layers); ++i) {
    const bool window = l.window_pages > 0 && c.sliding[i];
    layers.push_back({pool_spec(model, window ? l.window_pages : l.pool_pages, l.kv), window});
  }
  return layers;
}

std::int64_t bytes_of_pool(const models::LanguageModel& model, const BatchLayout& layout) {
  std::int64_t bytes = 0;
  for (const auto& l : layers_of_pool(model, layout)) bytes += 2 * l.spec.bytes();
  return bytes;
}

std::shared_ptr<const Pass> batch_pass(const models::LanguageModel& model, const BatchLayout& l,
                                       const Numerics& numerics) {
  const DType dtype = type_of_inference(model);
  const auto key =
      fmt::format("batch {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", l.tokens, l.sequences, l.pages, l.pool_pages,
                  l.window_pages, l.context, l.rows, l.single, l.vocab, l.rules.changes, l.rules.masks, l.adapters,
                  l.logprobs, key_of(numerics), dtype_name(dtype), dtype_name(l.kv));
  return model.programs().pass(key, [&] {
    Graph g({.inference = true, .numerics = numerics});
    const Var ids = g.input("tokens", {{1, l.tokens}, DType::i32});
    const auto batch = record_batch(g, model, l);
    Var hidden = model.body(g, ids, {.compute = dtype, .batch = &batch});
    if (l.rows == 0) return Pass::of(g, {ids}, {});
    if (l.chooses_rows()) {
      const auto width = hidden[-1];
      const Var rows = embedding(g.reshape(hidden, {l.tokens, width}), leaf(g, kRead, BatchSpecs(l).read));
      hidden = g.reshape(rows, {1, l.rows, width});
    }
    const Var logits = g.keep(model.head(g, hidden));
    std::vector<Var> out{g.reshape(logits, {l.rows, logits[-1]})};
    if (model.device().is_cuda()) {
      const Var found = l.single ? g.reshape(ids, {l.tokens}) : g.keep(g.temporary("next", {{l.rows}, DType::i32}));
      const bool all = l.vocab == 0 || l.vocab == logits[-1];
      Var known = all ? out[0] : g.slice(out[0], 0, l.vocab);
      if (l.rules.changes > 0) {
        if (l.logprobs >= 0) known = record<Cast>({DType::f32}, known);  // of unchanged logits
        const RuleSpecs specs(l.rows, l.rules, known[-1]);
        logit_rules_into(known, leaf(g, kRowRules, specs.rules), leaf(g, kRuleStarts, specs.starts),
                         leaf(g, kRuleChanges, specs.changes), leaf(g, kRuleMasks, specs.masks));
      }
      sample_into(found, known, leaf(g, kRules, BatchSpecs(l).rules));
      out.push_back(found);
      if (l.logprobs >= 0) {
        out.push_back(g.keep(g.temporary("logprobs", Logprobs::result(l.rows, l.logprobs))));
        logprobs_into(out.back(), out[0], leaf(g, kWanted, BatchSpecs(l).wanted), found);
      }
    }
    return Pass::of(g, {ids}, out);
  });
}

BatchMemory::BatchMemory(const BatchLayout& largest, Device device)
    : most_tokens_(largest.tokens),
      most_sequences_(largest.sequences),
      most_pages_(largest.pages),
      groups_(groups_of(largest)) {
  const auto groups = static_cast<std::int64_t>(groups_);
  next_.resize(static_cast<std::size_t>((8 * groups + 4) * most_tokens_ + 4 * most_sequences_));
  sequences_.resize(
      static_cast<std::size_t>(4 * (most_sequences_ + 1 + 2 * most_tokens_ + groups * most_sequences_ * most_pages_)));
  moving_ = OwnedTensor({{std::ssize(next_)}, DType::u8}, device);
  fixed_ = OwnedTensor({{std::ssize(sequences_)}, DType::u8}, device);
  if (!device.is_cuda()) return;
  rules_ = OwnedTensor({{largest.tokens, Sample::kRuleWords}, DType::i32}, device);
  wanted_ = OwnedTensor({{largest.tokens}, DType::i32}, device);
}

BatchMemory::Operands BatchMemory::operands(const BatchLayout& layout) const {
  const BatchSpecs specs(layout);
  const auto at = [](const OwnedTensor& block, std::int64_t byte, const Spec& spec) {
    return Tensor(block.tensor.ptr<std::byte>() + byte, spec, block.tensor.device());
  };
  const auto of_slots = 8 * most_tokens_, of_pages = 4 * most_sequences_ * most_pages_,
             positions = static_cast<std::int64_t>(groups_) * of_slots, read = 4 * (most_sequences_ + 1),
             adapters = read + 4 * most_tokens_, pages = adapters + 4 * most_tokens_;
  Operands all{.positions = at(moving_, positions, specs.positions),
               .starts = at(fixed_, 0, specs.starts),
               .lengths = at(moving_, positions + 4 * most_tokens_, specs.lengths),
               .read = at(fixed_, read, specs.read),
               .adapters = at(fixed_, adapters, specs.positions),
               .slots = {},
               .pages = {}};
  for (std::size_t i = 0; i < groups_; ++i) {
    const auto group = static_cast<std::int64_t>(i);
    all.slots[i] = at(moving_, group * of_slots, specs.slots);
    all.pages[i] = at(fixed_, pages + group * of_pages, specs.pages);
  }
  return all;
}

void BatchMemory::bind(const BatchLayout& layout, Bindings& to) const {
  const Operands at = operands(layout);
  to.bind(kPositions, at.positions);
  to.bind(kStarts, at.starts);
  to.bind(kLengths, at.lengths);
  if (layout.chooses_rows()) to.bind(kRead, at.read);
  if (layout.adapters) to.bind(kAdapters, at.adapters);
  for (std::size_t i = 0; i < groups_; ++i) to.bind(kSlots[i], at.slots[i]), to.bind(kPages[i], at.pages[i]);
  if (rules_.tensor && layout.rows > 0)
    to.bind(kRules, Tensor(rules_.tensor.data(), BatchSpecs(layout).rules, rules_.tensor.device()));
  if (layout.logprobs >= 0)
    to.bind(kWanted, Tensor(wanted_.tensor.data(), BatchSpecs(layout).wanted, wanted_.tensor.device()));
}

void BatchMemory::set(Stream& s, const BatchLayout& layout, std::span<const BatchRow> rows) {
  layout_ = layout;
  rows_.clear();
  for (const auto& r : rows) rows_.push_back({.length = r.length, .left = r.left, .pages = std::ssize(r.pages.all)});
  std::int64_t token = 0, row = 0;
  std::fill_n(read(), layout.rows, 0);  // padding reads any token
  for (std::int64_t r = 0; r < layout.sequences; ++r) {
    const bool there = r < std::ssize(rows);
    // Padding is no row, but reads keys of any page, as those do which a window has left: finite ones.
    const BatchRow any = rows.empty() ? BatchRow() : rows[there ? static_cast<std::size_t>(r) : 0];
    const auto tokens = there ? any.tokens : std::min(layout.single ? 1 : kPageTokens, layout.tokens - token);
    const auto before = there ? any.length : 0;
    starts()[r] = static_cast<std::int32_t>(token);
    for (std::size_t i = 0; i < groups_; ++i) {
      const auto of = any.pages.of(i);
      auto* to = pages(i) + r * layout.pages;
      to[0] = of.empty() ? 0 : of.back();
      if (there) std::ranges::transform(of, to, [&](auto page) { return page < 0 ? of.back() : page; });
      for (std::int64_t t = 0; t < tokens; ++t)
        slots(i)[token + t] =
            there ? to[(before + t) / kPageTokens] * kPageTokens + (before + t) % kPageTokens : std::int64_t{-1};
    }
    std::fill_n(adapters() + token, tokens, there ? any.adapter : -1);
    for (std::int64_t t = 0; t < tokens; ++t)
      positions()[token + t] = static_cast<std::int32_t>(before + t + (there ? any.left : 0));
    token += tokens;
    lengths()[r] = static_cast<std::int32_t>(before + tokens);
    if (there && layout.chooses_rows())
      for (auto at = token - any.read; at < token; ++at) read()[row++] = static_cast<std::int32_t>(at);
  }
  starts()[layout.sequences] = static_cast<std::int32_t>(token);
  const auto* end = pages(groups_ - 1) + layout.sequences * layout.pages;
  const Spec used{{reinterpret_cast<const std::byte*>(end) - sequences_.data()}, DType::u8};
  copy(s, Tensor(fixed_.tensor.data(), used, s.device()), View(sequences_.data(), used));
  copy(s, moving_.tensor, View(next_.data(), moving_.tensor.spec()));
}

void BatchMemory::set_rules(Stream& s, std::span<const SampleRule> rules) const {
  const Spec rows{{std::ssize(rules), Sample::kRuleWords}, DType::i32};
  copy(s, Tensor(rules_.tensor.data(), rows, s.device()), View(rules.data(), rows));
}

void BatchMemory::set_wanted(Stream& s, std::span<const std::int32_t> ids) const {
  const Spec rows{{std::ssize(ids)}, DType::i32};
  copy(s, Tensor(wanted_.tensor.data(), rows, s.device()), View(ids.data(), rows));
}

void BatchMemory::count() {
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const auto key = ++rows_[r].length, page = key / kPageTokens;
    positions()[r] = static_cast<std::int32_t>(key + rows_[r].left);
    lengths()[r] = static_cast<std::int32_t>(key + 1);
    for (std::size_t i = 0; i < groups_; ++i) {
      const auto* const mine = pages(i) + static_cast<std::int64_t>(r) * layout_.pages;
      // After the last token of a sequence there may be no page.
      slots(i)[r] = page < rows_[r].pages ? mine[page] * kPageTokens + key % kPageTokens : std::int64_t{-1};
    }
  }
}

void BatchMemory::advance(Stream& s) {
  count();
  copy(s, moving_.tensor, View(next_.data(), moving_.tensor.spec()));
}

void BatchMemory::deliver_and_advance([[maybe_unused]] Stream& s, [[maybe_unused]] std::int32_t* to,
                                      [[maybe_unused]] const Tensor& tokens) {
  count();
#if HPCDL_CUDA
  const auto at = operands(layout_);
  cuda::NextTokens next{.positions = at.positions, .lengths = at.lengths};
  for (std::size_t i = 0; i < groups_; ++i) next.places[i] = {at.slots[i], at.pages[i]};
  cuda::deliver(s, to, tokens, next);
#endif
}

}  // namespace hpcdl::infer
