#include "hpcdl/models/choose_formats.h"

#include <algorithm>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/layer_divergence.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/quant/dequantize.h"

namespace hpcdl::models {
namespace {

struct FormatCost {
  const nn::Codec* codec;
  double bits;        // of the whole matrix
  double divergence;  // that it causes
};

struct MatrixChoice {
  std::string name;
  std::vector<FormatCost> candidates = {};  // in ascending order of bits
  std::size_t chosen = 0;

  /// The candidate with at most `left` bits more that lowers the divergence most for them, and by how much for a bit; 0: none
  /// does.
  std::pair<std::size_t, double> best_step(double left) const {
    std::pair<std::size_t, double> best{chosen, 0};
    for (auto i = chosen + 1; i < candidates.size(); ++i) {
      const auto &from = candidates[chosen], &to = candidates[i];
      const double gain = (from.divergence - to.divergence) / (to.bits - from.bits);
      if (gain > best.second && to.bits - from.bits <= left) best = {i, gain};
    }
    return best;
  }
};

/// Codecs without options, which folders of another format may hold, and that of the options.
std::vector<const nn::Codec*> codecs_beside(const nn::Codec& chosen) {
  std::vector<const nn::Codec*> list{&quant::rot3_codec, &quant::int8_codec};
  if (std::ranges::find(list, &chosen) == list.end()) list.push_back(&chosen);
  return list;
}

class FormatCosts {
 public:
  FormatCosts(Pool& pool, const io::fs::path& from, const quant::QuantizeModelOptions& options,
              std::span<const std::int32_t> tokens)
      : pool_(pool), options_(options), model_(LanguageModel::open(from)), divergence_(model_, pool, tokens) {}

  MatrixChoice measure(const std::string& name, const View& w, bool transposed) {
    MatrixChoice m{.name = name};
    for (const auto* codec : codecs_beside(*options_.codec)) {
      const auto options = codec == options_.codec ? options_.options : nn::CodecOptions();
      if (!quant::misfit(*codec, w[transposed ? 0 : 1], options).empty()) continue;
      nn::RoundingError error;
      const auto parts = codec->quantize(pool_, w, options, transposed, error, name);
      nn::Codec::Parts<View> views;
      double bits = 0;
      for (std::size_t i = 0; i < parts.size(); ++i)
        views[i] = parts[i].tensor, bits += 8 * static_cast<double>(parts[i].tensor.bytes());
      const auto values = quant::dequantize(pool_, *codec, views, w[transposed ? 1 : 0]);
      m.candidates.push_back({codec, bits, divergence_.of(name, values.tensor, transposed)});
    }
    std::ranges::sort(m.candidates, {}, &FormatCost::bits);
    return m;
  }
  const io::ModelConfig& config() const { return model_.config(); }

 private:
  Pool& pool_;
  const quant::QuantizeModelOptions& options_;
  LanguageModel model_;
  LayerDivergence divergence_;
};

/// Spends at most `most` bits.
void spend_bits(std::vector<MatrixChoice>& matrices, double most) {
  double spent = 0;
  for (const auto& m : matrices) spent += m.candidates.front().bits;
  while (true) {
    MatrixChoice* best = nullptr;
    std::pair<std::size_t, double> step{0, 0};
    for (auto& m : matrices) {
      const auto next = m.best_step(most - spent);
      if (next.second > step.second) best = &m, step = next;
    }
    if (!best) return;
    spent += best->candidates[step.first].bits - best->candidates[best->chosen].bits;
    best->chosen = step.first;
  }
}

}  // namespace

std::map<std::string, const nn::Codec*> choose_formats(Pool& pool, const io::fs::path& from,
                                                       const quant::QuantizeModelOptions& options, double bits,
                                                       std::span<const std::int32_t> tokens) {
  FormatCosts measured(pool, from, options, tokens);
  const auto treats = treatments(measured.config());
  const auto files = io::TensorFolder::open(from);
  std::vector<MatrixChoice> matrices;
  double weights = 0, least = 0;
  for (const auto& t : files.tensors()) {
    const auto treatment = treats(t.name, t.spec);
    const bool transposed = treatment == quant::Treatment::conv1d;
    if ((treatment != quant::Treatment::matrix && !transposed) || (options.keep && options.keep(t.name))) continue;
    auto m = measured.measure(t.name, files.at(t.name), transposed);
    if (m.candidates.empty()) continue;  // quantising says why
    weights += static_cast<double>(t.spec.size()), least += m.candidates.front().bits;
    matrices.push_back(std::move(m));
  }
  if (least > bits * weights)
    fail_usage("quant", "--target-bpw {}: the smallest formats of the matrices take {:.3f} bits a weight", bits,
               least / weights);
  spend_bits(matrices, bits * weights);
  std::map<std::string, const nn::Codec*> chosen;
  for (const auto& m : matrices) chosen.emplace(m.name, m.candidates[m.chosen].codec);
  return chosen;
}

}  // namespace hpcdl::models
