#pragma once
// A llama in doubles, a token at a time, as the simplest code has it: any token may see any others.

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

class NaiveLlama {
 public:
  using Row = std::vector<double>;

  explicit NaiveLlama(models::LanguageModel& model) : c_(model.config()), layers_(static_cast<std::size_t>(c_.layers)) {
    for (auto& p : model.parameters()) {
      const auto* x = p.memory.ptr<float>();
      weights_[p.param->name].assign(x, x + p.memory.size());
    }
  }

  /// The log-probabilities after the next token, at position `tokens so far`, which sees those that `sees` says.
  Row next(std::int32_t id, const std::function<bool(std::int64_t place)>& sees) {
    const auto C = c_.width;
    const auto& table = weights_.at("model.embed_tokens.weight");
    Row x(table.begin() + id * C, table.begin() + (id + 1) * C);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto name = "model.layers." + std::to_string(i) + ".";
      const auto h = norm(x, name + "input_layernorm.weight");
      auto q = times(name + "self_attn.q_proj.weight", h), k = times(name + "self_attn.k_proj.weight", h);
      rotate(q), rotate(k);
      layers_[i].keys.push_back(k), layers_[i].values.push_back(times(name + "self_attn.v_proj.weight", h));
      add(x, times(name + "self_attn.o_proj.weight", attention(q, layers_[i], sees)));
      const auto m = norm(x, name + "post_attention_layernorm.weight");
      auto gate = times(name + "mlp.gate_proj.weight", m);
      const auto up = times(name + "mlp.up_proj.weight", m);
      for (std::size_t j = 0; j < gate.size(); ++j) gate[j] *= up[j] / (1 + std::exp(-gate[j]));
      add(x, times(name + "mlp.down_proj.weight", gate));
    }
    ++place_;
    auto y = times(c_.tied ? "model.embed_tokens.weight" : "lm_head.weight", norm(x, "model.norm.weight"));
    double sum = 0;
    for (const double v : y) sum += std::exp(v);
    for (double& v : y) v -= std::log(sum);
    return y;
  }

 private:
  struct Layer {
    std::vector<Row> keys, values;
  };

  Row times(const std::string& name, const Row& x) const {
    const auto& w = weights_.at(name);
    Row y(w.size() / x.size());
    for (std::size_t i = 0; i < y.size(); ++i)
      for (std::size_t j = 0; j < x.size(); ++j) y[i] += w[i * x.size() + j] * x[j];
    return y;
  }
  Row norm(const Row& x, const std::string& name) const {
    const auto& w = weights_.at(name);
    double squares = 0;
    for (const double v : x) squares += v * v;
    Row y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      y[i] = x[i] / std::sqrt(squares / static_cast<double>(x.size()) + c_.norm_eps) * w[i];
    return y;
  }
  void rotate(Row& x) const {
    const auto D = static_cast<std::size_t>(c_.head_dim);
    for (std::size_t h = 0; h < x.size(); h += D)
      for (std::size_t i = 0; i < D / 2; ++i) {
        const double angle = static_cast<double>(place_) *
                             std::pow(c_.rope_theta, -2 * static_cast<double>(i) / static_cast<double>(D)),
                     a = x[h + i], b = x[h + i + D / 2];
        x[h + i] = a * std::cos(angle) - b * std::sin(angle),
              x[h + i + D / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
  }
  Row attention(const Row& q, const Layer& layer, const std::function<bool(std::int64_t)>& sees) const {
    const auto D = static_cast<std::size_t>(c_.head_dim);
    const auto heads = static_cast<std::size_t>(c_.heads), shared = heads / static_cast<std::size_t>(c_.kv_heads);
    Row out(q.size());
    for (std::size_t h = 0; h < heads; ++h) {
      double sum = 0;
      for (std::size_t t = 0; t < layer.keys.size(); ++t) {
        if (!sees(static_cast<std::int64_t>(t))) continue;
        double score = 0;
        for (std::size_t i = 0; i < D; ++i) score += q[h * D + i] * layer.keys[t][h / shared * D + i];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(D)));
        sum += weight;
        for (std::size_t i = 0; i < D; ++i) out[h * D + i] += weight * layer.values[t][h / shared * D + i];
      }
      for (std::size_t i = 0; i < D; ++i) out[h * D + i] /= sum;
    }
    return out;
  }
  static void add(Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  io::ModelConfig c_;
  std::map<std::string, Row> weights_;
  std::vector<Layer> layers_;
  std::int64_t place_ = 0;
};

}  // namespace hpcdl::infer
