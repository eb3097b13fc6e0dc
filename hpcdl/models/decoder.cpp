#include "hpcdl/models/decoder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/expert_balance/expert_balance.h"
#include "hpcdl/ops/expert_exchange/expert_exchange.h"
#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/ops/rope/rope.h"
#include "hpcdl/ops/scale/scale.h"

namespace hpcdl::models {
namespace {

const nn::Linear& linear_of(const auto& block, BlockPart part) { return std::get<nn::Linear>(block.at(part)); }

Var normalised(const auto& norm, const Var& x) {
  if (const auto* rms = std::get_if<nn::RmsNorm>(&norm)) return (*rms)(x);
  return std::get<nn::LayerNorm>(norm)(x);
}

const nn::RmsNorm* norm_of(const auto& block, BlockPart part) {
  const auto at = block.find(part);
  return at == block.end() ? nullptr : &std::get<nn::RmsNorm>(at->second);
}

/// The scores of a router for x, f32: in f32 if its weight is.
Var router_scores(const nn::Weight& router, const Var& x) {
  Graph& g = x.graph();
  if (router.quantized() || router.value.dtype != DType::f32) return head_logits(router, x);
  const Graph::Autocast none(g, std::nullopt);
  return linear(cast(x, DType::f32), router(g), {}, {.constant_weights = router.constant()});
}

/// How many of `tokens` tokens a rank can send to another; `even`: if it chooses all experts equally often.
std::int64_t room_for(std::int64_t tokens, double even, const nn::ForwardOptions& o) {
  if (o.expert_capacity == 0 || !o.training) return tokens;
  return static_cast<std::int64_t>(std::min(std::ceil(o.expert_capacity * even), static_cast<double>(tokens)));
}

/// Whether the ops of one token, which have neither an offset of the norm's weights nor partial heads, hold this one.
const nn::RmsNorm* plain_norm(const auto& norm) {
  const auto* rms = std::get_if<nn::RmsNorm>(&norm);
  return rms && rms->weight_offset == 0 ? rms : nullptr;
}

}  // namespace

Decoder::Decoder(const io::ModelConfig& c, const DecoderSpec& spec)
    : spec_(spec),
      heads_(c.heads),
      kv_heads_(c.kv_heads),
      head_dim_(c.head_dim),
      activation_(activation_of(c.activation)),
      gate_(c.activation == io::Activation::silu ? Swiglu::Gate::silu : Swiglu::Gate::gelu_tanh),
      slides_(c.sliding),
      context_(c.context) {
  full_ = {.score_scale = c.score_divisor > 0 ? static_cast<float>(1 / std::sqrt(c.score_divisor)) : 0,
           .cap = static_cast<float>(c.score_cap)};
  sliding_ = full_;
  sliding_.window = c.window;
  tokens_ = nn::Embedding(c.vocab, c.width, kInitStd);
  if (spec.rotary()) angles_.emplace_back(c.context, c.rotated(), c.rope_theta, c.rope_scaling);
  if (spec.local_angles) angles_.emplace_back(c.context, c.rotated(), c.rope_local_theta);
  if (c.rope_scaling.kind == RopeScaling::Kind::longrope)
    angles_.emplace_back(c.context, c.rotated(), c.rope_theta, c.rope_scaling, true);
  if (!spec.rotary()) positions_ = nn::Embedding(c.context, c.width, kInitStd);
  last_norm_ = make_norm(c);
  if (!c.tied) head_ = nn::Embedding(c.vocab, c.width, kInitStd);
  (c.tied ? tokens_ : head_).weight.multiplied = true;
  blocks_.resize(static_cast<std::size_t>(c.layers));
  experts_.resize(blocks_.size());
  choice_ = {.count = static_cast<int>(c.chosen_experts), .sum_to_one = c.weights_sum_to_one};
  for (auto& layer : experts_)
    for (std::int64_t e = 0; e < c.experts; ++e)
      layer.push_back({std::get<nn::Linear>(make(BlockPart::gate, c)), std::get<nn::Linear>(make(BlockPart::up, c)),
                       std::get<nn::Linear>(make(BlockPart::down, c))});
  for (auto& b : blocks_)
    for (const auto& m : spec.block) b.emplace(m.part, make(m.part, c));
  if (!c.compressed.empty()) compress(c.compressed);
}

void Decoder::compress(const std::map<std::string, nn::Structure>& layers) {
  std::size_t found = 0;
  std::vector<std::string> names;
  for_each_compressible([&](const std::string& name, nn::Linear& layer) {
    names.push_back(name);
    const auto at = layers.find(name);
    if (at == layers.end()) return;
    layer.compress(at->second);
    ++found;
  });
  if (found == layers.size()) return;
  for (const auto& [name, structure] : layers)
    require(std::ranges::find(names, name) != names.end(), "model",
            "config.json describes the compressed layer {}, but the model has no such layer in its blocks{}", name,
            io::did_you_mean(name, names));
}

Decoder::Module Decoder::make_norm(const io::ModelConfig& c) const {
  const auto eps = static_cast<float>(c.norm_eps);
  if (spec_.layer_norm) return nn::LayerNorm(c.width, eps);
  return nn::RmsNorm(c.width, eps, spec_.norm_offset);
}

Decoder::Module Decoder::make(BlockPart part, const io::ModelConfig& c) const {
  const std::int64_t C = c.width, F = c.ffn, Q = c.heads * c.head_dim, K = c.kv_heads * c.head_dim;
  const float residual_std = kInitStd / std::sqrt(2.0f * static_cast<float>(c.layers));
  const auto layer = [&](std::int64_t in, std::int64_t out, bool bias, float std = kInitStd) {
    return nn::Linear(in, out, bias, std, spec_.layout);
  };
  switch (part) {
    case BlockPart::attention_norm:
    case BlockPart::attention_post_norm:
    case BlockPart::mlp_norm:
    case BlockPart::mlp_post_norm: return make_norm(c);
    case BlockPart::q_norm:
    case BlockPart::k_norm: return nn::RmsNorm(c.head_dim, static_cast<float>(c.norm_eps), spec_.norm_offset);
    case BlockPart::q: return layer(C, Q, spec_.qkv_bias);
    case BlockPart::k:
    case BlockPart::v: return layer(C, K, spec_.qkv_bias);
    case BlockPart::qkv: return layer(C, Q + 2 * K, spec_.qkv_bias);
    case BlockPart::o: return layer(Q, C, spec_.o_bias, residual_std);
    case BlockPart::up:
    case BlockPart::gate: return layer(C, F, spec_.mlp_bias);
    case BlockPart::router: {
      auto router = layer(C, c.experts, false);
      router.weight.multiplied = false;  // it stays in f32: rounded scores choose other experts
      return router;
    }
    case BlockPart::gate_up: return layer(C, 2 * F, spec_.mlp_bias);
    case BlockPart::down: return layer(F, C, spec_.mlp_bias, residual_std);
  }
  fail("model", "there is no part {} of a block", static_cast<int>(part));
}

std::array<Var, 2> Decoder::tables(const Var& tokens, const nn::ForwardOptions& o) const {
  Graph& g = tokens.graph();
  if (angles_.empty()) return {};
  // In pages, the longest text that they hold: so the angles do not change while a text grows.
  const auto rows = std::min(o.batch ? o.batch->context : o.length(tokens), context_);
  const auto table = [&](std::size_t i, const char* name) {
    const Var all = g.constant(name, angles_[i].first(rows));
    return o.positions ? embedding(all, g.reshape(o.positions, {o.positions.shape().size()})) : all;
  };
  if (spec_.local_angles) return {table(0, "rope.angles"), table(1, "rope.local_angles")};
  const bool beyond = static_cast<double>(rows) > angles_[0].scaling.original_context;
  const Var one = angles_.size() > 1 && beyond ? table(1, "rope.long_angles") : table(0, "rope.angles");
  return {one, one};
}

void Decoder::multiply_in_few_bits(const Fp8Options& o) {
  const auto blocks = std::ssize(blocks_);
  if (o.first + o.last >= blocks)
    fail_usage("model",
               "train.fp8_first = {} and train.fp8_last = {} leave none of the {} blocks to {}: lower them, or "
               "use train.dtype = \"bf16\"",
               o.first, o.last, blocks, o.mx4 ? "MXFP4" : "8-bit floats");
  const auto scaling = o.scales == Fp8Scales::row ? Fp8Scaling::row : Fp8Scaling::tensor;
  const auto* history = o.scales == Fp8Scales::delayed && !o.mx4 ? &fp8_history_.amax : nullptr;
  int layers = 0;
  for (auto i = o.first; i < blocks - o.last; ++i)
    for (auto& [part, module] : blocks_[static_cast<std::size_t>(i)]) {
      auto* layer = std::get_if<nn::Linear>(&module);
      if (!layer || part == BlockPart::router) continue;
      if (layer->structured)
        fail_usage(
            "model",
            "a compressed model is not trained in fp8 or mxfp4-emu: set train.dtype to \"f32\", \"bf16\" or \"fp16\"");
      if (o.mx4) layer->mx4.emplace(o.plain ? Mx4Method::plain : Mx4Method::quest);
      else layer->fp8.emplace(scaling, history, layers++);
      layer->weight.multiplied = false;  // not in 16 bits
    }
  if (!history) return;
  auto& amax = fp8_history_.amax;
  amax.spec = amax_history_spec(std::int64_t{Fp8Amax::kTensors} * layers);
  amax.role = nn::Role::state;
  amax.name = "fp8.amax";
}

Var Decoder::body(const Var& tokens, const nn::ForwardOptions& o, RouterLoad* load) const {
  Graph& g = tokens.graph();
  Var x;
  {
    Graph::Scope scope(g, "embedding");
    x = embed(tokens_, tokens, o, positions_.weight(g), vocabulary_);
    if (spec_.scaled_embedding) {
      const float factor = std::sqrt(static_cast<float>(x[-1]));  // rounded to the type of the embedding, as Gemma does
      x = scale(x, {.factor = x.dtype() == DType::bf16  ? static_cast<float>(bf16(factor))
                              : x.dtype() == DType::f16 ? static_cast<float>(f16(factor))
                                                        : factor});
    }
  }
  const auto angles = tables(tokens, o);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto& b = blocks_[i];
    const int layer = static_cast<int>(i);
    const Var& table = angles[i < slides_.size() && slides_[i] ? 1 : 0];
    if (weights_) weights_->fetch(g, layer);
    x = in_block(g, layer, o, [&] { return mlp(b, layer, attention(b, x, table, layer, o), o, load); });
    if (weights_) weights_->release(g, layer);
  }
  return x;
}

bool Decoder::takes_adapter(std::string_view module) const {
  if (spec_.experts.empty()) return true;
  const auto is_router = [&](const auto& m) {
    return m.part == BlockPart::router && module.ends_with(fmt::format(".{}", m.name));
  };
  return module.find(fmt::format(".{}.", spec_.experts)) == std::string_view::npos &&
         std::ranges::none_of(spec_.block, is_router);
}

int Decoder::layer_of(std::string_view name) const {
  const auto prefix = named(spec_.layers) + ".";
  int layer = -1;
  if (name.starts_with(prefix)) std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layer;
}

int Decoder::expert_of(std::string_view name) const {
  const auto infix = fmt::format(".{}.", spec_.experts);
  const auto at = name.find(infix);
  int expert = -1;
  if (!spec_.experts.empty() && at != std::string_view::npos)
    std::from_chars(name.data() + at + infix.size(), name.data() + name.size(), expert);
  return expert;
}

Var Decoder::norm(const Var& x) const { return normalised(last_norm_, x); }

/// residual (B, T, C) + the projected attention of its normalised rows. `angles`: the table of rope(), or absent.
Var Decoder::attention(const Block& b, const Var& residual, const Var& angles, int layer,
                       const nn::ForwardOptions& options) const {
  Graph& g = residual.graph();
  const auto& norm = b.at(BlockPart::attention_norm);
  const auto at = static_cast<std::size_t>(layer);
  Heads heads = at < slides_.size() && slides_[at] ? sliding_ : full_;
  heads.query = static_cast<int>(heads_), heads.key_value = static_cast<int>(kv_heads_);
  const auto* after = norm_of(b, BlockPart::attention_post_norm);
  if (const auto* rms = plain_norm(norm);
      rms && angles && angles[1] == head_dim_ && !b.contains(BlockPart::qkv) && !b.contains(BlockPart::q_norm) &&
      is_decoding_step(
          residual, {&linear_of(b, BlockPart::q), &linear_of(b, BlockPart::k), &linear_of(b, BlockPart::v)}, options)) {
    Graph::Scope scope(g, "attn");
    return project(linear_of(b, BlockPart::o), after,
                   attend_step(*rms, linear_of(b, BlockPart::q), linear_of(b, BlockPart::k), linear_of(b, BlockPart::v),
                               residual, angles, heads, layer, options),
                   residual, options);
  }
  const Var x = normalised(norm, residual);
  Graph::Scope scope(g, "attn");
  const auto D = head_dim_, Q = heads_ * D, K = kv_heads_ * D;
  using enum BlockPart;
  const auto positioned = [&](Var y, BlockPart head_norm) {
    if (b.contains(head_norm)) {
      const Shape flat = y.shape();
      y = g.reshape(normalised(b.at(head_norm), g.reshape(y, {flat[0], flat[1], flat[2] / D, D})), flat);
    }
    if (!angles) return y;
    if (!options.positions) return rope(y, angles, options.batch ? options.batch->positions : Var(), {.head_dim = D});
    const Shape rows = y.shape();  // the table has a row for every token
    return g.reshape(rope(g.reshape(y, {1, rows[0] * rows[1], rows[2]}), angles, {.head_dim = D}), rows);
  };
  const nn::Input input(x);
  const auto apply = [&](BlockPart part) { return linear_of(b, part)(input, Activation::none, {}, options); };
  Var queries, keys, values;
  if (b.contains(qkv)) {
    const Var all = apply(qkv);
    queries = positioned(g.slice(all, 0, Q), q_norm);
    keys = positioned(g.slice(all, Q, K), k_norm);
    values = g.slice(all, Q + K, K);
  } else {
    queries = positioned(apply(q), q_norm);
    keys = positioned(apply(k), k_norm);
    values = apply(v);
  }
  return project(linear_of(b, BlockPart::o), after, attend(queries, keys, values, heads, layer, options), residual,
                 options);
}

/// The experts of a layer that this rank has.
Interval Decoder::of_rank(const std::vector<Expert>& experts) const {
  return expert_ranks_ ? expert_ranks_->mine(std::ssize(experts)) : Interval{0, std::ssize(experts)};
}

const Decoder::Expert& Decoder::first_of_rank(const std::vector<Expert>& experts) const {
  return experts[static_cast<std::size_t>(of_rank(experts).begin)];
}

std::vector<ExpertMatrices<Var>> Decoder::matrices_of(const std::vector<Expert>& experts, const Var& x) const {
  const auto mine = of_rank(experts);
  std::vector<ExpertMatrices<Var>> matrices;
  for (auto i = mine.begin; i < mine.end; ++i) {
    const auto& e = experts[static_cast<std::size_t>(i)];
    matrices.push_back(
        {e.gate.matrix(x.graph(), x.dtype()), e.up.matrix(x.graph(), x.dtype()), e.down.matrix(x.graph(), x.dtype())});
  }
  return matrices;
}

/// residual + the weighted sum of the experts, which several ranks divide: tokens go to the ranks that have them.
Var Decoder::mixture_across(const std::array<Var, 2>& choice, const Var& x, const Var& residual,
                            const std::vector<Expert>& experts, const nn::ForwardOptions& o, RouterLoad* load) const {
  const auto& ranks = *expert_ranks_;
  const std::int64_t choices = choice[1].shape().size(), tokens = choices / choice_.count;
  const auto room = room_for(tokens, static_cast<double>(choices) / ranks.size(), o);
  const auto sent =
      expert_dispatch(x, choice[0], choice[1], {.experts = std::ssize(experts), .room = room, .ranks = ranks.size()});
  if (load && room < tokens) load->dropped = expert_dropped(sent[3], load->dropped);
  const auto& down = first_of_rank(experts).down.weight;
  const auto swap = [&](const Var& v, std::string_view what) { return swap_parts(v, ranks.axis.with(what)); };
  const auto matrices = matrices_of(experts, x);
  const Var results = expert_mlp(Var(), swap(sent[0], "tokens"), swap(sent[1], "weights of experts"),
                                 swap(sent[2], "chosen experts"), std::span<const ExpertMatrices<Var>>(matrices),
                                 {.gate = gate_, .constant_weights = down.constant(), .choices = choices});
  const auto* s = down.shared_as(nn::Place::rows);
  return expert_combine(residual, swap(results, "results of experts"), sent[3], {.addend = s && s->rank > 0});
}

/// residual (B, T, C) + the weighted sum of the MLPs that the router chooses for each normalised row.
Var Decoder::mixture(const Block& b, int layer, const Var& residual, const nn::ForwardOptions& o,
                     RouterLoad* load) const {
  Graph& g = residual.graph();
  const Var x = normalised(b.at(BlockPart::mlp_norm), residual);
  Graph::Scope scope(g, "mlp");
  const Var scores = router_scores(linear_of(b, BlockPart::router).weight, x);
  const auto choice = moe_route(scores, choice_);
  if (load && load->balanced) {
    const auto sums = expert_load(scores, choice[1], load->probabilities, load->counts);
    load->probabilities = sums[0], load->counts = sums[1];
  }
  if (weights_) weights_->fetch_experts(g, layer, choice[1]);
  const auto& experts = experts_[static_cast<std::size_t>(layer)];
  const auto& down = first_of_rank(experts).down.weight;
  const auto* s = down.shared_as(nn::Place::rows);
  Var y;
  if (expert_ranks_) {
    y = mixture_across(choice, x, residual, experts, o, load);
  } else {
    const auto matrices = matrices_of(experts, x);
    y = expert_mlp(residual, x, choice[0], choice[1], std::span<const ExpertMatrices<Var>>(matrices),
                   {.gate = gate_, .constant_weights = down.constant(), .addend = s && s->rank > 0});
  }
  return s ? leave(y, down.axis()) : y;
}

/// residual (B, T, C) + the MLP of its normalised rows.
Var Decoder::mlp(const Block& b, int layer, const Var& residual, const nn::ForwardOptions& options,
                 RouterLoad* load) const {
  Graph& g = residual.graph();
  using enum BlockPart;
  if (b.contains(router)) return mixture(b, layer, residual, options, load);
  const auto& norm = b.at(mlp_norm);
  const auto* after = norm_of(b, mlp_post_norm);
  if (const auto* rms = plain_norm(norm);
      rms && gate_ == Swiglu::Gate::silu && b.contains(gate) &&
      is_decoding_step(residual, {&linear_of(b, gate), &linear_of(b, up)}, options)) {
    Graph::Scope scope(g, "mlp");
    return project(linear_of(b, down), after, gated_step(*rms, linear_of(b, gate), linear_of(b, up), residual),
                   residual, options);
  }
  const Var x = normalised(norm, residual);
  Graph::Scope scope(g, "mlp");
  const nn::Input input(x);
  const auto apply = [&](BlockPart part, Activation act) { return linear_of(b, part)(input, act, {}, options); };
  Var hidden;
  if (b.contains(gate_up)) {
    const Var both = apply(gate_up, Activation::none);
    const auto F = both[-1] / 2;
    hidden = swiglu(g.slice(both, 0, F), g.slice(both, F, F), {gate_});
  } else if (b.contains(gate)) {
    const Var y = apply(up, Activation::none);
    hidden = swiglu(apply(gate, Activation::none), y, {gate_});
  } else if (options.fused_mlp && options.dropout == 0 && linear_of(b, up).is_plain() &&
             linear_of(b, down).is_plain()) {
    return nn::mlp(linear_of(b, up), linear_of(b, down), x, activation_, residual);
  } else {
    hidden = apply(up, activation_);
  }
  return project(linear_of(b, down), after, hidden, residual, options);
}

}  // namespace hpcdl::models
