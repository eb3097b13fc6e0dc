#include "hpcdl/io/checkpoint_files.h"

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "hpcdl/core/copy_elements.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/io/checkpoint_check.h"
#include "hpcdl/io/checkpoint_share.h"
#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/stored_checkpoint.h"

namespace hpcdl::io {
namespace {

/// Whether the tensors are all that a checkpoint holds.
enum class Holds : unsigned char { all, some };

/// Fills the tensors of this rank from the parts in the files.
void load_into(const fs::path& folder, const std::vector<StoredTensor>& stored, std::span<const NamedTensor> tensors,
               const char* what, Holds holds) {
  std::unordered_map<std::string_view, const StoredTensor*> by_name;
  for (const auto& t : stored) by_name.emplace(t.name, &t);
  for (const auto& [name, tensor, part] : tensors) {
    const auto it = by_name.find(name);
    require(it != by_name.end(), "io",
            "{}: the {} needs tensor {}, which the checkpoint does not have: resume with the configuration that it was "
            "saved with",
            folder.string(), what, shown(name));
    const Spec whole = whole_spec(tensor.spec(), part, shown(name)), &found = it->second->whole;
    require(found == whole, "io",
            "{}: {} tensor {}: expected {}, found {}: resume with the configuration that it was saved with",
            folder.string(), what, shown(name), to_string(whole), to_string(found));
    read_part(*it->second, tensor, part);
  }
  require(holds == Holds::some || stored.size() == tensors.size(), "io",
          "{}: expected the {} tensors of the {}, found {}: resume with the configuration that it was saved with",
          folder.string(), tensors.size(), what, stored.size());
}

void fill_with_zeros(const Tensor& t) {
  constexpr std::byte kZero[sizeof(double)] = {};
  Shape still = t.shape();
  for (int d = 0; d < still.rank(); ++d) still[d] = 0;
  copy_elements(t, View(kZero, t.spec(), still, {}));
}

void load(const fs::path& folder, std::span<const NamedTensor> model, std::span<const NamedTensor> optimizer,
          Holds holds) {
  const StoredCheckpoint stored(folder);
  load_into(folder, stored.model(), model, "model", holds);
  if (stored.info().state.step > 0 || !stored.optimizer().empty())
    return load_into(folder, stored.optimizer(), optimizer, "optimizer", holds);
  for (const auto& t : optimizer) fill_with_zeros(t.tensor);
}

}  // namespace

CheckpointInfo read_checkpoint_info(const fs::path& folder) {
  return checkpoint_info(folder, read_checkpoint_state(folder));
}

CheckpointInfo verify_checkpoint(const fs::path& folder, int part, int parts) {
  check_checkpoint(folder, [](const std::string& what) { throw Error(what); }, {.part = part, .parts = parts});
  return read_checkpoint_info(folder);
}

void load_checkpoint(const fs::path& folder, std::span<const NamedTensor> model,
                     std::span<const NamedTensor> optimizer) {
  load(folder, model, optimizer, Holds::all);
}

void load_checkpoint_share(const fs::path& folder, std::span<const NamedTensor> model,
                           std::span<const NamedTensor> optimizer) {
  load(folder, model, optimizer, Holds::some);
}

}  // namespace hpcdl::io
