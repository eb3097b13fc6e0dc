#include "hpcdl/train/import_checkpoint.h"
#include "hpcdl/train/init.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint.h"
#include "hpcdl/io/copy_stored.h"
#include "hpcdl/io/first_checkpoint.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/quant/staged_folder.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/run_model.h"
#include "hpcdl/train/run_table.h"
#include "hpcdl/train/synthetic_run.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

/// The tensors of a source by the names of the model.
class Names {
 public:
  Names(const ImportSource& source, std::string decoder_prefix, const std::vector<std::string>& wanted)
      : source_(source), decoder_prefix_(std::move(decoder_prefix)) {
    for (const auto& t : source.tensors) index_.emplace(t.name, &t);
    prefix_ = source.prefix ? *source.prefix : found_prefix(wanted);
  }

  const std::string& prefix() const { return prefix_; }

  /// Null if there is none.
  const io::StoredTensor* find(const std::string& name) const { return find(prefix_, name); }

  const io::StoredTensor& at(const std::string& name) const {
    const auto* t = find(name);
    if (t) return *t;
    std::vector<std::string> names;
    for (const auto& [known, _] : index_) names.emplace_back(known);
    fail("import", "{}: tensor {} of the model is not there{}", source_.path.string(), io::shown(prefix_ + name),
         io::did_you_mean(prefix_ + name, names));
  }

 private:
  const io::StoredTensor* find(const std::string& prefix, const std::string& name) const {
    for (const auto& spelled : {prefix + name, prefix + bare(name)})
      if (const auto it = index_.find(spelled); it != index_.end()) return it->second;
    return nullptr;
  }
  std::string bare(const std::string& name) const {
    return name.starts_with(decoder_prefix_) ? name.substr(decoder_prefix_.size()) : name;
  }

  /// What stands before the first name of the model wherever it appears, if all other names exist with it, too.
  std::string found_prefix(const std::vector<std::string>& wanted) const {
    if (wanted.empty() || find("", wanted[0])) return "";
    std::set<std::string> candidates, whole;
    for (const auto& end : {wanted[0], bare(wanted[0])})
      for (const auto& [name, _] : index_)
        if (name.ends_with("." + end)) candidates.emplace(name.substr(0, name.size() - end.size()));
    for (const auto& prefix : candidates)
      if (std::ranges::all_of(wanted, [&](const auto& name) { return find(prefix, name) != nullptr; }))
        whole.insert(prefix);
    // "a.model." with the bare name and "a." with the whole one find the same tensors.
    if (whole.size() > 1) std::erase_if(whole, [&](const auto& p) { return same_as_shorter(p, whole, wanted); });
    if (whole.size() > 1)
      fail_usage("import", "{} holds the model more than once, with the prefixes {}: choose one with --prefix",
                 source_.path.string(), fmt::join(whole, ", "));
    return whole.empty() ? "" : *whole.begin();
  }
  bool same_as_shorter(const std::string& prefix, const std::set<std::string>& all,
                       const std::vector<std::string>& wanted) const {
    return std::ranges::any_of(all, [&](const auto& other) {
      return other.size() < prefix.size() && find(other, wanted[0]) == find(prefix, wanted[0]);
    });
  }

  const ImportSource& source_;
  std::string decoder_prefix_, prefix_;
  std::unordered_map<std::string_view, const io::StoredTensor*> index_;
};

/// "layers.3." of "model.layers.3.mlp.up_proj.weight"; empty outside of layers.
std::string_view layer_in(std::string_view name) {
  for (auto dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    const auto end = name.find_first_not_of("0123456789", dot + 1);
    if (end != std::string_view::npos && end > dot + 1 && name[end] == '.') return name.substr(0, end + 1);
  }
  return {};
}

/// The tensors that are not used. Throws Error if one of them is a weight or a bias in a layer of the model: it would
/// give other results than without it.
std::vector<std::string> unused_tensors(const ImportSource& source, const models::DecoderSpec& decoder,
                                        const std::set<const io::StoredTensor*>& used) {
  std::set<std::string_view> layers;
  for (const auto* t : used) layers.insert(layer_in(t->name));
  layers.erase("");
  std::vector<std::string> list;
  for (const auto& t : source.tensors) {
    if (used.contains(&t)) continue;
    const bool counts = (t.name.ends_with(".weight") || t.name.ends_with(".bias")) && !decoder.is_no_parameter(t.name);
    require(!counts || !layers.contains(layer_in(t.name)), "import",
            "{}: tensor {} belongs to a layer, but the model that the config describes does not have it: expected the "
            "config that was saved with these files",
            source.path.string(), io::shown(t.name));
    list.push_back(t.name);
  }
  return list;
}

std::vector<io::NamedSpec> specs_of(const models::Trainable& model) {
  std::vector<io::NamedSpec> specs;
  for (const auto entries : {model.parameters(), model.buffers()})
    for (const auto& e : entries) specs.push_back({e.name, e.whole()});
  return specs;
}

}  // namespace

void take_over_model(RunConfig& config, const fs::path& folder) {
  RunConfig found, sayable;
  found.model = models::read_hf_config(folder);
  found.capacity = config.capacity;
  if (found.model.quant) fail_usage("import", "{} is quantised: import the original model", folder.string());
  const auto list = model_contradictions(config, found);
  if (!list.empty())
    fail_usage("import", "{} describes a model that contradicts {}: leave {} out", (folder / "config.json").string(),
               fmt::join(list, ", and "), list.size() == 1 ? "this key" : "these keys");
  found.model.dtype = DType::f32;  // in which runs keep and save weights
  config.model = found.model;
  table_of(sayable).apply_toml(table_of(found).to_toml(), "config.toml");
  models::resolve(sayable.model);
  sayable.model.bos = found.model.bos, sayable.model.eos = found.model.eos;  // a run has those of its tokenizer
  if (sayable.model != found.model)
    fail_usage("import",
               "{} has settings that no key of [model] can say, such as scaled rotary angles, so no run could resume "
               "from the checkpoint",
               (folder / "config.json").string());
}

ImportReport import_checkpoint(RunConfig& config, const ImportSource& source, const fs::path& out,
                               const std::function<void(double share, const std::string& tensor)>& progress) {
  const fs::path folder = out / "checkpoints";
  require(io::list_checkpoints(folder).empty(), "import",
          "{} has checkpoints, which a run would no longer continue from: choose another folder", folder.string());
  const auto model = model_without_data(config, {});
  const auto specs = specs_of(*model);
  const bool text = !io::is_image_family(config.model.family);
  const auto decoder = text ? models::row_of(config.model.family).decoder(config.model) : models::DecoderSpec();
  std::vector<std::string> wanted;
  for (const auto& s : specs) wanted.push_back(s.name);
  const Names names(source, std::string(decoder.prefix), wanted);
  ImportReport report;
  report.prefix = names.prefix(), report.tensors = std::ssize(specs);
  std::set<const io::StoredTensor*> used;
  for (const auto& s : specs) {
    const auto& t = names.at(s.name);
    require(t.whole.shape == s.spec.shape, "import", "{}: tensor {}: the config describes {}, the file has {}",
            source.path.string(), io::shown(t.name), to_string(s.spec), to_string(t.whole));
    used.insert(&t);
    report.bytes += s.spec.bytes();
  }
  report.unused = unused_tensors(source, decoder, used);
  const auto write = [&](io::TensorFolderWriter& writer) {
    std::map<std::string, std::uint32_t> checksums;
    std::int64_t done = 0;
    for (const auto& s : specs) {
      if (progress) progress(static_cast<double>(done) / static_cast<double>(report.bytes), s.name);
      checksums[s.name] = io::copy_stored(names.at(s.name), writer, s.name, s.spec.dtype);
      done += s.spec.bytes();
    }
    return checksums;
  };
  io::CheckpointContent content;
  content.config_toml = table_of(config).to_toml();
  content.extra = [&](const fs::path& to) {
    write_model_config(to, config);
    if (!source.companions.empty()) quant::copy_companions(source.companions, to);
  };
  io::TrainState state;
  state.seed = config.train.seed;
  io::Checkpoints checkpoints(folder);
  report.checkpoint = checkpoints.save(0, [&](const fs::path& to, std::int64_t serial) {
    io::write_first_checkpoint(to, state, serial, specs, write, content);
  });
  return report;
}

}  // namespace hpcdl::train
