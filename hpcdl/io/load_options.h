#pragma once

#include <cstdint>
#include <string>
#include <utility>

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

/// The folder in "NAME=DIR" or "DIR".
inline fs::path folder_of_adapter(const std::string& text) {
  const auto sign = text.find('=');
  return text.substr(sign == std::string::npos ? 0 : sign + 1);
}

struct LoadOptions {
  LoadMode mode = LoadMode::mapped;
  std::int64_t ram = 0;   // the most bytes of memory for weights; 0: what is free
  std::int64_t vram = 0;  // GPU: the most bytes of its memory for weights; 0: all of them are there
  fs::path adapter = {};  // a folder with an adapter to use beside the weights (models/adapter_files.h); empty: none
  Device device = {};     // where the model will be

  /// Whether something else was asked for than an automatic choice.
  bool given() const { return mode != LoadMode::automatic || ram > 0 || vram > 0; }
  /// The same for a model that will move there: what a GPU copies is mapped, unless something else was asked for.
  /// Throws UsageError for what only a CPU can do.
  LoadOptions on(Device where) const;
};

}  // namespace hpcdl::io
