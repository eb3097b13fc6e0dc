#pragma once
// Adapters in folders: adapter_config.json and adapter_model.safetensors, as the library peft writes and reads them.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/models/adapter_options.h"

namespace hpcdl::models {

/// What adapter_config.json says besides the options.
struct AdapterFacts {
  std::string base = {};                    // folder or name of the model that it belongs to
  bool conv1d = false;                      // matrices of the model are stored (in, out)
  std::vector<std::string> layers = {};     // the layers that have an adapter, by their whole names
  std::vector<std::string> no_layers = {};  // all others
};

io::Json make_adapter_config(const AdapterOptions& options, const AdapterFacts& facts);
/// Throws Error that names the key if it asks for what we would compute in another way (DoRA, ranks by layer, ...).
AdapterOptions parse_adapter_config(const io::Json& json, const std::string& where);

/// What identifies the model to which an adapter belongs, beside the files of peft: FOLDER/base.json.
struct AdapterBase {
  std::string fingerprint;     // of its tensors (models/fingerprint.h)
  float scale = 1;             // AdapterOptions::scale()
  std::string quantized = {};  // BaseOptions::words(): in what it was held during the training
  bool operator==(const AdapterBase&) const = default;
};
void write_adapter_base(const io::fs::path& folder, const AdapterBase& base);
/// Nothing if there is no such file, as in adapters of peft.
std::optional<AdapterBase> read_adapter_base(const io::fs::path& folder);

/// The name in the file of a tensor that is called `name` in the model. `adapted`: its layer has an adapter.
std::string peft_name(const std::string& name, bool adapted);

/// An adapter that is read. Its tensors are views into the mapped file.
class AdapterFolder {
 public:
  /// A folder as given, or model/ in the folder of a run. Throws Error that names the file and what is wrong with it.
  static AdapterFolder open(const io::fs::path& folder);

  const AdapterOptions& options() const { return options_; }
  const io::fs::path& path() const { return path_; }
  /// As the file names them.
  const std::vector<io::TensorInfo>& tensors() const { return files_.tensors(); }
  /// Of the adapter of this layer; 0: it has none. Throws Error if it is not that of the config.
  std::int64_t rank(const std::string& layer) const;
  /// By the name that it has in the model.
  std::optional<View> find(const std::string& name) const;
  /// The same. Throws Error if it is missing or has another shape.
  View at(const std::string& name, const Shape& shape) const;
  /// Throws Error if the file has tensors that are not among `names`: it belongs to another model.
  void require_no_others(const std::set<std::string>& names) const;
  /// Throws Error if the adapter says that it belongs to a model with other weights.
  void require_base(const io::fs::path& base) const;

 private:
  AdapterFolder(io::fs::path path, AdapterOptions options, io::TensorFolder files)
      : path_(std::move(path)), options_(std::move(options)), files_(std::move(files)) {}

  io::fs::path path_;
  AdapterOptions options_;
  io::TensorFolder files_;
};

/// Whether the folder holds an adapter and no model.
bool is_adapter_folder(const io::fs::path& folder);

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterTensors = "adapter_model.safetensors";
inline constexpr const char* kAdapterBase = "base.json";

}  // namespace hpcdl::models
