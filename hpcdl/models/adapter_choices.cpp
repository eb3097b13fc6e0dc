#include "hpcdl/models/adapter_choices.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/models/adapt.h"

namespace hpcdl::models {
namespace {

/// What one adapter adds to a layer. Names of what is used are added to `used`.
nn::AdapterSet::Member member_of(const AdapterFolder& adapter, const std::string& name, const nn::Linear& l,
                                 const Binder& files, std::set<std::string>& used) {
  nn::AdapterSet::Member m{.a = {}, .b = {}, .scale = adapter.options().scale()};
  if (const auto rank = adapter.rank(name); rank > 0) {
    const auto a = name + ".lora_A.weight", b = name + ".lora_B.weight";
    m.a = adapter.at(a, {rank, l.in()}), m.b = adapter.at(b, {l.out(), rank});
    used.insert({a, b});
  }
  if (l.bias.spec && adapter.find(l.bias.name)) {
    const Spec spec{l.bias.spec.shape, DType::f32};
    const OwnedTensor own(spec), base(spec);
    convert_elements(own.tensor, adapter.at(l.bias.name, spec.shape));
    files.copy(l.bias.name, base.tensor);
    m.shift.resize(static_cast<std::size_t>(spec.size()));
    std::transform(own.tensor.ptr<float>(), own.tensor.ptr<float>() + spec.size(), base.tensor.ptr<float>(),
                   m.shift.begin(), std::minus());
    used.insert(l.bias.name);
  }
  return m;
}

void require_untrained(const nn::Param& p, std::span<const AdapterFolder> adapters) {
  for (const auto& a : adapters)
    require(!a.find(p.name), "adapter",
            "{} trains {} whole, which the texts of a batch share: use it for all texts (--adapter DIR, without a "
            "name), or merge it into the model (hpcdl adapter merge)",
            a.path().string(), p.name);
}

}  // namespace

std::vector<std::shared_ptr<nn::AdapterSet>> attach_choices(Decoder& model, std::span<const AdapterFolder> adapters,
                                                            const Binder& files, DType matrices) {
  std::vector<std::shared_ptr<nn::AdapterSet>> sets;
  std::vector<std::set<std::string>> used(adapters.size());
  model.visit([&]<class M>(const auto& module_name, M& module) {
    const std::string name(module_name);
    if constexpr (std::is_same_v<M, nn::Linear>) {
      require_untrained(module.weight, adapters);
      std::vector<nn::AdapterSet::Member> members;
      for (std::size_t i = 0; i < adapters.size(); ++i)
        members.push_back(member_of(adapters[i], name, module, files, used[i]));
      if (std::ranges::none_of(members, [](const auto& m) { return m.a || !m.shift.empty(); })) return;
      require_takes_adapter(model, name);
      sets.push_back(std::make_shared<nn::AdapterSet>(name, module.in(), module.out(), members, matrices));
      module.choices = sets.back();
    } else {
      nn::for_each_param(module, [&](const std::string&, const nn::Param& p) { require_untrained(p, adapters); });
    }
  });
  for (std::size_t i = 0; i < adapters.size(); ++i) adapters[i].require_no_others(used[i]);
  return sets;
}

}  // namespace hpcdl::models
