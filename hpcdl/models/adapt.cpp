#include "hpcdl/models/adapt.h"

#include <algorithm>
#include <regex>
#include <set>
#include <type_traits>

#include "hpcdl/core/error.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/nn/codec.h"

namespace hpcdl::models {
namespace {

constexpr std::string_view kAllLinear = "all-linear";

/// f(name, module) for every module of the decoder.
template <class F> void for_each_module(Decoder& model, F f) { model.visit(f); }

void name_parameters(const std::string& name, nn::Linear& l) {
  nn::for_each_param(l, [](const std::string& full, nn::Param& p) { p.name = full; }, name);
}

/// Names that match a whole name, or all of it after a dot. Each remembers whether it has matched anything.
class Names {
 public:
  Names(std::string_view key, const std::vector<std::string>& patterns) : key_(key) {
    for (const auto& p : patterns) {
      try {
        static_cast<void>(std::regex(p));  // by itself, so that it ends where it seems to end
        list_.push_back({p, std::regex("(?:.*\\.)?(?:" + p + ")", std::regex::ECMAScript | std::regex::optimize)});
      } catch (const std::regex_error&) {
        fail_usage("adapter", "adapter.{}: expected a regular expression, found \"{}\"", key_, p);
      }
    }
  }
  bool match(const std::string& name) {
    seen_.push_back(name);
    bool any = false;
    for (auto& n : list_)
      if (std::regex_match(name, n.regex)) n.used = any = true;
    return any;
  }
  /// Throws UsageError that names the first name that has matched nothing, and the nearest that there is.
  void require_used() const {
    std::set<std::string> last_parts;
    for (const auto& name : seen_) last_parts.insert(name.substr(name.rfind('.') + 1));
    const std::vector<std::string> known(last_parts.begin(), last_parts.end());
    for (const auto& n : list_)
      if (!n.used)
        fail_usage("adapter", "adapter.{}: \"{}\" matches no module of the model{}; it has {}", key_, n.text,
                   io::did_you_mean(n.text, known), fmt::join(known, ", "));
  }

 private:
  struct Name {
    std::string text;
    std::regex regex;
    bool used = false;
  };
  std::string_view key_;
  std::vector<Name> list_;
  std::vector<std::string> seen_;
};

void add_adapter(const Decoder& model, const std::string& name, nn::Linear& l, const AdapterOptions& o) {
  require_takes_adapter(model, name);
  if (const auto most = std::min(l.in(), l.out()); o.r > most)
    fail_usage("adapter", "adapter.r = {} is larger than the layer {}, which is {} x {}: choose at most {}", o.r, name,
               l.out(), l.in(), most);
  l.adapter.emplace(l.in(), l.out(), o.r, o.scale(), static_cast<float>(o.dropout));
  name_parameters(name, l);
}

}  // namespace

void require_adaptable(const std::filesystem::path& folder, const io::ModelConfig& config, bool foreign,
                       const BaseOptions& options, bool shared) {
  if (options.given() && !config.compressed.empty())
    fail_usage("model", "{} is compressed, and factors are not quantised: leave model.quantize out", folder.string());
  if (!config.quant && !foreign) return;
  if (options.given())
    fail_usage("model", "{} is quantised already: leave model.quantize out, or start from the original model",
               folder.string());
  if (config.quant && !config.quant->codec->gradients)
    fail_usage("model", "{} is quantised in {}, whose products have no gradients: start from the original model",
               folder.string(), config.quant->codec->name);
  if (shared)
    fail_usage("model", "ranks that share the layers hold no quantised base, as {} is: set parallel.tp to 1",
               folder.string());
}

void require_takes_adapter(const Decoder& model, const std::string& layer) {
  if (model.takes_adapter(layer)) return;
  fail_usage("adapter",
             "{} cannot have an adapter: adapter.targets may name attention layers of a mixture of experts, "
             "q_proj, k_proj, v_proj, o_proj",
             layer);
}

void adapt(Decoder& model, const AdapterOptions& o) {
  const bool all = o.targets == std::vector<std::string>{std::string(kAllLinear)};
  Names targets("targets", all ? std::vector<std::string>() : o.targets), keep("keep", o.keep);
  if (!all && o.targets.empty())
    fail_usage("adapter", "adapter.targets is empty: give names of layers, or \"{}\"", kAllLinear);
  for_each_module(model, [&]<class M>(const auto& module_name, M& m) {
    const std::string name(module_name);
    const bool whole = keep.match(name);
    nn::for_each_param(m, [&](const std::string&, nn::Param& p) {
      if (!whole) p.role = nn::Role::frozen;
    });
    if constexpr (std::is_same_v<M, nn::Linear>) {
      const bool adapted = (all || targets.match(name)) && !whole;
      if (adapted) add_adapter(model, name, m, o);
      if (o.bias == AdapterBias::all || (adapted && o.bias == AdapterBias::lora_only)) m.bias.role = nn::Role::trained;
    } else if constexpr (std::is_same_v<M, nn::LayerNorm>) {
      if (o.bias == AdapterBias::all) m.bias.role = nn::Role::trained;
    }
  });
  targets.require_used();
  keep.require_used();
}

void attach(Decoder& model, const AdapterOptions& options,
            const std::function<std::int64_t(const std::string&)>& rank) {
  for_each_module(model, [&]<class M>(const auto& module_name, M& m) {
    if constexpr (std::is_same_v<M, nn::Linear>) {
      const std::string name(module_name);
      auto o = options;
      o.r = rank(name);
      if (o.r == 0) return;
      add_adapter(model, name, m, o);
      // Adapters are f32 in files, and do not decide in which type the model computes.
      m.adapter->a.multiplied = m.adapter->b.multiplied = false;
    }
  });
}

}  // namespace hpcdl::models
