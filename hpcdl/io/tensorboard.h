#pragma once
// Event files that TensorBoard reads. File: events.out.tfevents.<unix s>.<host>.<pid>.<n>, a row of records
// u64 length | u32 mask(crc32c(length)) | bytes | u32 mask(crc32c(bytes)), little-endian, mask(c) = rotr(c, 15) +
// 0xa282ead8; bytes are an Event of tensorflow/core/util/event.proto, encoded by hand (ten fields do not justify a
// dependency).

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "hpcdl/io/file.h"

namespace hpcdl::io {

/// One event file. Buffered: written out every ten seconds, on flush() and at the end. Failures throw Error, except in
/// the destructor, where unwritten data are lost.
class TensorBoardWriter {
 public:
  /// `resumed_at`: the step at which this run continues; viewers then ignore what an earlier file of the folder
  /// contains for later ones.
  explicit TensorBoardWriter(const fs::path& folder, std::optional<std::int64_t> resumed_at = {});
  TensorBoardWriter(TensorBoardWriter&&) = default;
  ~TensorBoardWriter();

  void scalar(std::string_view tag, float value, std::int64_t step);
  /// Shown in the text tab, as Markdown.
  void text(std::string_view tag, std::string_view markdown, std::int64_t step);
  void flush();
  const fs::path& path() const { return path_; }

 private:
  void add(std::string_view event);

  fs::path path_;
  Fd fd_;
  std::string buffer_;
  std::chrono::steady_clock::time_point flushed_ = std::chrono::steady_clock::now();
};

/// One record of an event file, for tests and tools.
std::string tensorboard_record(std::string_view event);

}  // namespace hpcdl::io
