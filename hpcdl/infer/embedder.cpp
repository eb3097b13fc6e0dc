#include "hpcdl/infer/embedder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {

namespace {

constexpr std::int64_t kTokenStep = 64;  // programs are for multiples of this, or a smaller power of two
constexpr std::size_t kMostRecorded = 64;

std::int64_t rounded_sequences(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}
std::int64_t rounded_tokens(std::int64_t n) {
  return n <= kTokenStep ? rounded_sequences(n) : (n + kTokenStep - 1) / kTokenStep * kTokenStep;
}

void to_length_one(std::span<float> v) {
  double squares = 0;
  for (const float x : v) squares += static_cast<double>(x) * static_cast<double>(x);
  const double by = std::max(std::sqrt(squares), 1e-12);
  for (float& x : v) x = static_cast<float>(static_cast<double>(x) / by);
}

}  // namespace

std::vector<std::int32_t> ids_for_embedding(const io::Tokenizer& tokenizer, const models::EmbeddingConfig& config,
                                            std::string_view text, bool truncate) {
  const auto prefix = tokenizer.prefix(), suffix = tokenizer.suffix();
  const auto special = std::ssize(prefix) + std::ssize(suffix);
  auto ids = tokenizer.encode(config.prompt + std::string(text));
  const auto length = std::ssize(ids) + special;
  if (length > config.longest) {
    require(truncate, "embed", "a text has {} tokens, and the model takes {}: shorten it, or allow to truncate it",
            length, config.longest);
    ids.resize(static_cast<std::size_t>(std::max<std::int64_t>(config.longest - special, 0)));
  }
  ids.insert(ids.begin(), prefix.begin(), prefix.end());
  ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

std::vector<float> shortened(std::span<const float> vector, std::int64_t dimensions) {
  require(dimensions >= 1 && dimensions <= std::ssize(vector), "embed",
          "{} dimensions are asked for: expected 1 to {}, those of the model", dimensions, vector.size());
  std::vector<float> v(vector.begin(), vector.begin() + dimensions);
  to_length_one(v);
  return v;
}

Embedder::Embedder(const models::TextEncoder& model, Pool& pool, std::int64_t budget)
    : model_(model), stream_(model.device(), pool), budget_(std::max(budget, model.embedding().longest)) {}

void Embedder::check(Texts texts) const {
  const auto vocab = model_.config().vocab, longest = model_.embedding().longest;
  for (const auto& text : texts) {
    require(!text.empty() && std::ssize(text) <= longest, "embed", "a text has {} tokens: expected 1 to {}",
            text.size(), longest);
    for (const auto id : text)
      require(id >= 0 && id < vocab, "embed",
              "token {} is not in the model's vocabulary of {}: tokenizer and model do not belong together", id, vocab);
  }
}

std::vector<std::vector<float>> Embedder::embed(Texts texts) {
  check(texts);
  std::vector<std::size_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return texts[i].size(); });
  std::vector<std::vector<float>> vectors(texts.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::int64_t tokens = 0;
    auto end = begin;
    while (end < order.size() && tokens + std::ssize(texts[order[end]]) <= budget_)
      tokens += std::ssize(texts[order[end++]]);
    pass(texts, std::span(order).subspan(begin, end - begin), vectors);
    begin = end;
  }
  return vectors;
}

const Instance& Embedder::program(std::int64_t tokens, std::int64_t sequences) {
  const auto found = programs_.find({tokens, sequences});
  if (found != programs_.end()) return found->second;
  if (programs_.size() == kMostRecorded) programs_.clear();
  const auto pass = model_.programs().pass(fmt::format("states {} {}", tokens, sequences), [&] {
    Graph g({.inference = true});
    const auto i32 = [&](const char* name, Shape shape) { return g.input(name, {std::move(shape), DType::i32}); };
    const models::PackedTexts in{.tokens = i32("tokens", {1, tokens}),
                                 .positions = i32("positions", {tokens}),
                                 .starts = i32("starts", {sequences + 1}),
                                 .most = std::max(model_.embedding().longest, kTokenStep)};
    const Var out = g.keep(model_.states(g, in));
    return Pass::of(g, {in.tokens, in.positions, in.starts}, {out});
  });
  if (!arena_) arena_ = std::make_shared<Buffer>();
  return programs_.emplace(std::pair{tokens, sequences}, Instance(*pass, arena_, model_.device())).first->second;
}

/// Tokens that fill the program up are a text of their own.
void Embedder::pass(Texts texts, std::span<const std::size_t> which, std::vector<std::vector<float>>& vectors) {
  std::vector<std::int32_t> tokens, positions, starts{0};
  const auto add = [&](const std::vector<std::int32_t>& text) {
    tokens.insert(tokens.end(), text.begin(), text.end());
    for (std::size_t i = 0; i < text.size(); ++i) positions.push_back(static_cast<std::int32_t>(i));
    starts.push_back(static_cast<std::int32_t>(tokens.size()));
  };
  for (const auto i : which) add(texts[i]);
  const auto used = std::ssize(tokens), all = rounded_tokens(used);
  tokens.resize(static_cast<std::size_t>(all)), positions.resize(static_cast<std::size_t>(all));
  const auto sequences = rounded_sequences(std::ssize(which) + 1);
  starts.resize(static_cast<std::size_t>(sequences + 1), static_cast<std::int32_t>(all));

  const auto& exe = program(all, sequences);
  const std::vector<std::int32_t>* const in[] = {&tokens, &positions, &starts};
  for (int i = 0; i < 3; ++i) copy(stream_, exe.input(i), View(in[i]->data(), exe.input(i).spec()));
  exe.run(stream_);
  const Tensor out = exe.output(0);
  const float* states = out.ptr<float>();
  if (model_.device().is_cuda()) {
    states_.resize(static_cast<std::size_t>(out.size()));
    copy(stream_, Tensor(states_.data(), out.spec()), out);
    stream_.synchronize();
    states = states_.data();
  }
  for (std::size_t r = 0; r < which.size(); ++r)
    vectors[which[r]] = pooled(states + starts[r] * model_.config().width, starts[r + 1] - starts[r]);
}

/// Of the states of one text.
std::vector<float> Embedder::pooled(const float* states, std::int64_t tokens) const {
  const auto width = model_.config().width;
  const auto& how = model_.embedding();
  std::vector<float> v(states, states + width);
  if (how.pooling == models::Pooling::mean) {
    std::vector<double> sum(static_cast<std::size_t>(width));
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < width; ++i)
        sum[static_cast<std::size_t>(i)] += static_cast<double>(states[t * width + i]);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(sum[i] / static_cast<double>(tokens));
  } else if (how.pooling == models::Pooling::max) {
    for (std::int64_t t = 1; t < tokens; ++t)
      for (std::int64_t i = 0; i < width; ++i)
        v[static_cast<std::size_t>(i)] = std::max(v[static_cast<std::size_t>(i)], states[t * width + i]);
  }
  require(
      std::ranges::all_of(v, [](float x) { return std::isfinite(x); }), "embed",
      "the vector of a text is not finite: the weights hold NaN or overflow; check them with `hpcdl inspect --check`");
  if (how.normalise) to_length_one(v);
  return v;
}

}  // namespace hpcdl::infer
