#include "hpcdl/infer/batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/infer/kv_pool.h"
#include "hpcdl/models/decoder.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/ops/sample/sample.h"

namespace hpcdl::infer {
namespace {

constexpr const char *kPositions = "batch.positions", *kSlots = "batch.slots", *kStarts = "batch.starts",
                     *kLengths = "batch.lengths", *kRead = "batch.read", *kPages = "batch.pages",
                     *kRules = "batch.rules";

struct BatchSpecs {
  Spec positions, slots, starts, lengths, read, pages, rules;
  explicit BatchSpecs(const BatchLayout& l)
      : positions{{l.tokens}, DType::i32},
        slots{{l.tokens}, DType::i64},
        starts{{l.sequences + 1}, DType::i32},
        lengths{{l.sequences}, DType::i32},
        read{{l.rows}, DType::i32},
        pages{{l.sequences, l.pages}, DType::i32},
        rules{{l.rows, Sample::kRuleWords}, DType::i32} {}
};

/// In the key of a pass.
std::string key_of(const Numerics& n) {
  return fmt::format("{}{}{}", static_cast<int>(n.products), n.atomic_sums ? 1 : 0, n.row_invariant ? 1 : 0);
}

Var leaf(Graph& g, const std::string& name, const Spec& spec) { return g.constant(name, Tensor(nullptr, spec)); }

nn::PagedBatch record_batch(Graph& g, const models::LanguageModel& model, const BatchLayout& l) {
  const BatchSpecs specs(l);
  nn::PagedBatch b{.layers = {},
                   .positions = leaf(g, kPositions, specs.positions),
                   .slots = leaf(g, kSlots, specs.slots),
                   .starts = leaf(g, kStarts, specs.starts),
                   .lengths = leaf(g, kLengths, specs.lengths),
                   .pages = leaf(g, kPages, specs.pages),
                   .most_queries = l.single ? 1 : l.tokens};
  const Spec pool = pool_spec(model, l.pool_pages, l.kv);
  for (std::int64_t i = 0; i < model.config().layers; ++i)
    b.layers.push_back({leaf(g, KvPool::name_of_keys(i), pool), leaf(g, KvPool::name_of_values(i), pool)});
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

/// A product of an f32 activation and a 16-bit weight is one that no tensor core forms.
DType type_of_inference(const models::LanguageModel& model) {
  if (model.compute_type() != DType::none) return model.compute_type();
  if (!model.device().is_cuda()) return DType::f32;
  if (const auto& quant = model.config().quant) return quant->codec->activations_on_gpu;
  const DType weights = model.matrix_type();
  return weights == DType::bf16 || weights == DType::f16 ? weights : DType::f32;
}

Spec pool_spec(const models::LanguageModel& model, std::int64_t pool_pages, DType kv) {
  const auto& c = model.config();
  const std::int64_t ranks = model.sharing() ? model.sharing()->size() : 1;  // each stores its heads
  return pool_of(pool_pages, models::kv_heads_of_rank(c.kv_heads, ranks), c.head_dim,
                 kv == DType::none ? type_of_inference(model) : kv);
}

std::shared_ptr<const Pass> batch_pass(const models::LanguageModel& model, const BatchLayout& l,
                                       const Numerics& numerics) {
  const DType dtype = type_of_inference(model);
  const auto key = fmt::format("batch {} {} {} {} {} {} {} {} {} {}", l.tokens, l.sequences, l.pages, l.pool_pages,
                               l.rows, l.single, l.vocab, key_of(numerics), dtype_name(dtype), dtype_name(l.kv));
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
      sample_into(found, all ? out[0] : g.slice(out[0], 0, l.vocab), leaf(g, kRules, BatchSpecs(l).rules));
      out.push_back(found);
    }
    return Pass::of(g, {ids}, out);
  });
}

BatchMemory::BatchMemory(const BatchLayout& largest, Device device)
    : most_tokens_(largest.tokens), most_sequences_(largest.sequences), most_pages_(largest.pages) {
  next_.resize(static_cast<std::size_t>(12 * most_tokens_ + 4 * most_sequences_));
  sequences_.resize(static_cast<std::size_t>(4 * (most_sequences_ + 1 + most_tokens_ + most_sequences_ * most_pages_)));
  moving_ = OwnedTensor({{std::ssize(next_)}, DType::u8}, device);
  fixed_ = OwnedTensor({{std::ssize(sequences_)}, DType::u8}, device);
  if (device.is_cuda()) rules_ = OwnedTensor({{largest.tokens, Sample::kRuleWords}, DType::i32}, device);
}

BatchMemory::Operands BatchMemory::operands(const BatchLayout& layout) const {
  const BatchSpecs specs(layout);
  const auto at = [](const OwnedTensor& block, std::int64_t byte, const Spec& spec) {
    return Tensor(block.tensor.ptr<std::byte>() + byte, spec, block.tensor.device());
  };
  return {.positions = at(moving_, 8 * most_tokens_, specs.positions),
          .slots = at(moving_, 0, specs.slots),
          .starts = at(fixed_, 0, specs.starts),
          .lengths = at(moving_, 12 * most_tokens_, specs.lengths),
          .read = at(fixed_, 4 * (most_sequences_ + 1), specs.read),
          .pages = at(fixed_, 4 * (most_sequences_ + 1 + most_tokens_), specs.pages)};
}

void BatchMemory::bind(const BatchLayout& layout, Bindings& to) const {
  const Operands at = operands(layout);
  to.bind(kPositions, at.positions);
  to.bind(kSlots, at.slots);
  to.bind(kStarts, at.starts);
  to.bind(kLengths, at.lengths);
  if (layout.chooses_rows()) to.bind(kRead, at.read);
  to.bind(kPages, at.pages);
  if (rules_.tensor && layout.rows > 0)
    to.bind(kRules, Tensor(rules_.tensor.data(), BatchSpecs(layout).rules, rules_.tensor.device()));
}

void BatchMemory::set(Stream& s, const BatchLayout& layout, std::span<const BatchRow> rows) {
  layout_ = layout;
  rows_.clear();
  for (const auto& r : rows) rows_.push_back({.length = r.length, .pages = std::ssize(r.pages)});
  std::int64_t token = 0, row = 0;
  std::fill_n(read(), layout.rows, 0);  // padding reads any token
  for (std::int64_t r = 0; r < layout.sequences; ++r) {
    const bool there = r < std::ssize(rows);
    const auto tokens = there ? rows[static_cast<std::size_t>(r)].tokens
                              : std::min(layout.single ? 1 : kPageTokens, layout.tokens - token);
    starts()[r] = static_cast<std::int32_t>(token);
    auto* to = pages() + r * layout.pages;
    if (there) std::ranges::copy(rows[static_cast<std::size_t>(r)].pages, to);
    else *to = rows.empty() ? 0 : rows.front().pages.front();  // padding reads keys of any page
    const auto before = there ? rows[static_cast<std::size_t>(r)].length : 0;
    for (auto position = before; position < before + tokens; ++position, ++token) {
      positions()[token] = static_cast<std::int32_t>(position);
      slots()[token] = there ? to[position / kPageTokens] * kPageTokens + position % kPageTokens : -1;
    }
    lengths()[r] = static_cast<std::int32_t>(before + tokens);
    if (there && layout.chooses_rows())
      for (auto at = token - rows[static_cast<std::size_t>(r)].read; at < token; ++at)
        read()[row++] = static_cast<std::int32_t>(at);
  }
  starts()[layout.sequences] = static_cast<std::int32_t>(token);
  const auto* end = pages() + layout.sequences * layout.pages;
  const Spec used{{reinterpret_cast<const std::byte*>(end) - sequences_.data()}, DType::u8};
  copy(s, Tensor(fixed_.tensor.data(), used, s.device()), View(sequences_.data(), used));
  copy(s, moving_.tensor, View(next_.data(), moving_.tensor.spec()));
}

void BatchMemory::set_rules(Stream& s, std::span<const SampleRule> rules) const {
  const Spec rows{{std::ssize(rules), Sample::kRuleWords}, DType::i32};
  copy(s, Tensor(rules_.tensor.data(), rows, s.device()), View(rules.data(), rows));
}

void BatchMemory::count() {
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const auto position = ++rows_[r].length, page = position / kPageTokens;
    positions()[r] = static_cast<std::int32_t>(position);
    // After the last token of a sequence there may be no page.
    const auto* const mine = pages() + static_cast<std::int64_t>(r) * layout_.pages;
    slots()[r] = page < rows_[r].pages ? mine[page] * kPageTokens + position % kPageTokens : -1;
    lengths()[r] = static_cast<std::int32_t>(position + 1);
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
  cuda::deliver(s, to, tokens, {at.positions, at.slots, at.lengths, at.pages});
#endif
}

}  // namespace hpcdl::infer
