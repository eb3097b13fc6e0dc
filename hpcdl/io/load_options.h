#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/device.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/io/file.h"

namespace hpcdl::io {

/// How the weights of a model come from its files.
enum class LoadMode : unsigned char {
  automatic,  // one of the others, by how much memory there is, what the page cache holds, and what reads how fast
  mapped,     // they are used where the files are mapped
  direct,     // layers that do not fit pass through blocks of memory, read past the page cache
  resident,   // all are read into memory once, past the page cache
};
template <> struct EnumNames<LoadMode> {
  static constexpr std::pair<LoadMode, std::string_view> values[] = {{LoadMode::automatic, "auto"},
                                                                     {LoadMode::mapped, "mapped"},
                                                                     {LoadMode::direct, "direct"},
                                                                     {LoadMode::resident, "resident"}};
};

/// A folder with an adapter (models/adapter_files.h).
struct NamedAdapter {
  std::string name;
  fs::path folder;
};
/// Those in words such as "NAME=DIR", or "DIR" and "=DIR", which have no name. Throws UsageError that names `verb` if a
/// folder is missing, two have one name, or one of several has none.
std::vector<NamedAdapter> read_adapters(std::string_view verb, const std::vector<std::string>& words);

struct LoadOptions {
  LoadMode mode = LoadMode::mapped;
  std::int64_t ram = 0;                    // the most bytes of memory for weights; 0: what is free
  std::int64_t vram = 0;                   // GPU: the most bytes of its memory for weights; 0: all of them are there
  fs::path adapter = {};                   // a folder with an adapter to use beside the weights; empty: none
  std::vector<NamedAdapter> choices = {};  // adapters of which every text of a batch has its own or none
  Device device = {};                      // where the model will be

  /// Takes the one that has no name for all texts, and otherwise all of them as choices.
  void use(std::vector<NamedAdapter> adapters);
  /// Whether something else was asked for than an automatic choice.
  bool given() const { return mode != LoadMode::automatic || ram > 0 || vram > 0; }
  /// The same for a model that will move there: what a GPU copies is mapped, unless something else was asked for.
  /// Throws UsageError for what only a CPU can do.
  LoadOptions on(Device where) const;
};

}  // namespace hpcdl::io
