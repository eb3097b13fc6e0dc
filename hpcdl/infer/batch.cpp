#include "hpcdl/infer/batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/infer/kv_pool.h"
#include "hpcdl/ops/argmax/argmax.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {
namespace {

constexpr const char *kPositions = "batch.positions", *kSlots = "batch.slots", *kStarts = "batch.starts",
                     *kLengths = "batch.lengths", *kPages = "batch.pages";

struct BatchSpecs {
  Spec positions, slots, starts, lengths, pages;
  explicit BatchSpecs(const BatchLayout& l)
      : positions{{l.tokens}, DType::i32},
        slots{{l.tokens}, DType::i64},
        starts{{l.sequences + 1}, DType::i32},
        lengths{{l.sequences}, DType::i32},
        pages{{l.sequences, l.pages}, DType::i32} {}
};

/// In the key of a pass.
std::string key_of(const Numerics& n) {
  return fmt::format("{}{}{}", static_cast<int>(n.products), n.atomic_sums ? 1 : 0, n.row_invariant ? 1 : 0);
}

nn::PagedBatch record_batch(Graph& g, const models::LanguageModel& model, const BatchLayout& l) {
  const BatchSpecs specs(l);
  const auto leaf = [&](const std::string& name, const Spec& spec) { return g.constant(name, Tensor(nullptr, spec)); };
  nn::PagedBatch b{.layers = {},
                   .positions = leaf(kPositions, specs.positions),
                   .slots = leaf(kSlots, specs.slots),
                   .starts = leaf(kStarts, specs.starts),
                   .lengths = leaf(kLengths, specs.lengths),
                   .pages = leaf(kPages, specs.pages),
                   .most_queries = l.sequences > 1 ? 1 : l.tokens};
  const Spec pool = pool_spec(model, l.pool_pages);
  for (std::int64_t i = 0; i < model.config().layers; ++i)
    b.layers.push_back({leaf(KvPool::name_of_keys(i), pool), leaf(KvPool::name_of_values(i), pool)});
  return b;
}

}  // namespace

BatchLayout BatchLayout::of_one(std::int64_t tokens, std::int64_t capacity) {
  return {.tokens = tokens, .sequences = 1, .pages = pages_for(capacity), .pool_pages = pages_for(capacity)};
}

/// A product of an f32 activation and a 16-bit weight is one that no tensor core forms.
DType type_of_inference(const models::LanguageModel& model) {
  if (!model.device().is_cuda()) return DType::f32;
  if (const auto& quant = model.config().quant) return quant->codec->activations_on_gpu;
  const DType weights = model.matrix_type();
  return weights == DType::bf16 || weights == DType::f16 ? weights : DType::f32;
}

Spec pool_spec(const models::LanguageModel& model, std::int64_t pool_pages) {
  const auto& c = model.config();
  const std::int64_t ranks = model.sharing() ? model.sharing()->size() : 1;  // each stores its heads
  return {{pool_pages, c.kv_heads / ranks, kPageTokens, c.head_dim}, type_of_inference(model)};
}

std::shared_ptr<const Pass> batch_pass(const models::LanguageModel& model, const BatchLayout& l,
                                       const Numerics& numerics) {
  const DType dtype = type_of_inference(model);
  const auto key = fmt::format("batch {} {} {} {} {} {}", l.tokens, l.sequences, l.pages, l.pool_pages,
                               key_of(numerics), dtype_name(dtype));
  return model.programs().pass(key, [&] {
    Graph g({.inference = true, .numerics = numerics});
    const Var ids = g.input("tokens", {{1, l.tokens}, DType::i32});
    const auto batch = record_batch(g, model, l);
    std::vector<Var> out{g.keep(model.body(g, ids, {.compute = dtype, .batch = &batch}))};
    if (batch.most_queries == 1) {
      out.push_back(g.keep(model.head(g, out[0])));
      if (model.device().is_cuda()) argmax_into(g.reshape(ids, {l.tokens}), g.reshape(out[1], {l.tokens, out[1][-1]}));
    }
    return Pass::of(g, {ids}, out);
  });
}

std::shared_ptr<const Pass> head_pass(const models::LanguageModel& model, const Numerics& numerics) {
  const DType dtype = type_of_inference(model);
  return model.programs().pass(fmt::format("head {} {}", key_of(numerics), dtype_name(dtype)), [&] {
    Graph g({.inference = true, .numerics = numerics});
    const Var hidden = g.input("hidden", {{1, 1, model.config().width}, dtype});
    return Pass::of(g, {hidden}, {model.head(g, hidden)});
  });
}

BatchMemory::BatchMemory(const BatchLayout& largest, Device device)
    : most_tokens_(largest.tokens), most_sequences_(largest.sequences), most_pages_(largest.pages) {
  next_.resize(static_cast<std::size_t>(12 * most_tokens_ + 4 * most_sequences_));
  sequences_.resize(static_cast<std::size_t>(4 * (most_sequences_ + 1 + most_sequences_ * most_pages_)));
  moving_ = OwnedTensor({{std::ssize(next_)}, DType::u8}, device);
  fixed_ = OwnedTensor({{std::ssize(sequences_)}, DType::u8}, device);
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
          .pages = at(fixed_, 4 * (most_sequences_ + 1), specs.pages)};
}

void BatchMemory::bind(const BatchLayout& layout, Bindings& to) const {
  const Operands at = operands(layout);
  to.bind(kPositions, at.positions);
  to.bind(kSlots, at.slots);
  to.bind(kStarts, at.starts);
  to.bind(kLengths, at.lengths);
  to.bind(kPages, at.pages);
}

void BatchMemory::set(Stream& s, const BatchLayout& layout, std::span<const BatchRow> rows) {
  layout_ = layout;
  rows_.assign(rows.begin(), rows.end());
  const auto each = layout.sequences == 1 ? layout.tokens : 1;
  for (std::int64_t r = 0; r < layout.sequences; ++r) {
    starts()[r + 1] = static_cast<std::int32_t>((r + 1) * each);
    const bool there = r < std::ssize(rows_);
    const auto& row = rows_[there ? static_cast<std::size_t>(r) : 0];
    auto* to = pages() + r * layout.pages;
    if (there) std::copy(row.pages.begin(), row.pages.end(), to);
    else *to = row.pages.front();  // padding reads one key
    for (std::int64_t i = 0; i < each; ++i) {
      const auto t = r * each + i, position = there ? row.length + i : 0;
      positions()[t] = static_cast<std::int32_t>(position);
      slots()[t] =
          there ? row.pages[static_cast<std::size_t>(position / kPageTokens)] * kPageTokens + position % kPageTokens
                : -1;
    }
    lengths()[r] = static_cast<std::int32_t>(there ? row.length + each : 1);
  }
  starts()[0] = 0;
  copy(s, fixed_.tensor, View(sequences_.data(), fixed_.tensor.spec()));
  copy(s, moving_.tensor, View(next_.data(), moving_.tensor.spec()));
}

void BatchMemory::count() {
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const auto position = ++rows_[r].length;
    const auto page = static_cast<std::size_t>(position / kPageTokens);
    positions()[r] = static_cast<std::int32_t>(position);
    // After the last token of a sequence there may be no page.
    slots()[r] = page < rows_[r].pages.size() ? rows_[r].pages[page] * kPageTokens + position % kPageTokens : -1;
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
