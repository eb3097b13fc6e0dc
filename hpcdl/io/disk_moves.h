#pragma once
// Moves between an arena and a scratch file as records of a program. Of a CPU: on another lane than `compute` they go
// on in the background, and only records that touch the same memory wait for them.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "hpcdl/graph.h"
#include "hpcdl/io/scratch_file.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::io {

/// The arguments of such a record: the file, and the byte of it with which the tensor begins.
struct OnDisk : Bound {
  std::int64_t byte = 0;
};

/// Operand: a contiguous tensor, which begins with a page of its slot. Its last page moves as a whole.
struct DiskRead {
  static constexpr std::string_view name = "disk.read";
  using RecordArgs = OnDisk;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* operands, const void* args);
  static Ticket start(Stream& s, const Grad* operands, const void* args);
};
struct DiskWrite {
  static constexpr std::string_view name = "disk.write";
  using RecordArgs = OnDisk;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* operands, const void* args);
  static Ticket start(Stream& s, const Grad* operands, const void* args);
};

/// A file that records move to and from, by the name that it has in programs: 23 characters at most. Without a file they
/// can be recorded, but not run.
class DiskPlace {
 public:
  DiskPlace(std::string_view name, std::shared_ptr<ScratchFile> file) : name_(name), file_(std::move(file)) {}

  /// Pushes a record that reads `to` from the file, or one that writes `from`: the tensor begins with byte `byte`.
  void read(Graph& g, Operand to, std::int64_t byte, Phase phase) const;
  void write(Graph& g, Operand from, std::int64_t byte, Phase phase) const;
  /// Inserts the same before record `before` of a program that is edited, and in its phase.
  void read(Edit& edit, std::size_t before, Operand to, std::int64_t byte) const;
  void write(Edit& edit, std::size_t before, Operand from, std::int64_t byte) const;
  /// Binds the file in a program that was edited.
  void bind(Bindings& bindings) const;

  const std::shared_ptr<ScratchFile>& file() const { return file_; }

 private:
  OnDisk args(std::int64_t byte) const { return {{name_, file_.get()}, byte}; }

  std::string name_;
  std::shared_ptr<ScratchFile> file_;
};

/// Bytes that the records of a program move from and to files.
std::int64_t disk_bytes(const Program& program);

}  // namespace hpcdl::io
