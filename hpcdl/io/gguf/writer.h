#pragma once
// Writes GGUF files tensor by tensor: at no time does it hold more than what it is given.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/gguf/metadata.h"
#include "hpcdl/io/gguf/types.h"
#include "hpcdl/shape.h"

namespace hpcdl::io {

/// Keys and values, in the order in which they are added.
class GgufValues {
 public:
  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, const char* text) { add(key, std::string_view(text)); }
  void add(std::string_view key, bool flag);
  void add(std::string_view key, std::uint32_t number);
  void add(std::string_view key, float number);
  void add(std::string_view key, const std::vector<std::string>& texts);
  void add(std::string_view key, const std::vector<float>& numbers);
  void add(std::string_view key, const std::vector<std::int32_t>& numbers);
  /// As another file holds it.
  void add(std::string_view key, const GgufValue& value);

 private:
  friend class GgufWriter;
  std::uint64_t count_ = 0;
  std::string bytes_;
};

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    GgufType type = GgufType::f32;
    Shape shape = {};  // outermost first
    std::int64_t bytes() const;
  };

  /// Throws Error for rows that are no whole blocks.
  GgufWriter(const fs::path& path, const GgufValues& values, std::vector<Tensor> tensors);

  /// Appends blocks to the current tensor: tensors are written in their order, each in any number of parts.
  void append(std::span<const std::byte> blocks);
  /// Throws Error if not all was written.
  void commit();

 private:
  void finish_tensors();

  fs::path path_;
  AtomicFile file_;
  std::vector<Tensor> tensors_;
  std::size_t current_ = 0;
  std::int64_t written_ = 0;  // of the current tensor
};

}  // namespace hpcdl::io
