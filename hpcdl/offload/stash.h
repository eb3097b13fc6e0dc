#pragma once
// Where tensors of a pass wait, outside its arena, between a record that writes them and one that reads them: a file on a
// disk, or host memory beside a GPU.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "hpcdl/core/pinned.h"
#include "hpcdl/io/disk_moves.h"

namespace hpcdl::offload {

/// Shared by passes that never run at the same time.
class Stash {
 public:
  Stash() = default;
  Stash(const Stash&) = delete;
  Stash& operator=(const Stash&) = delete;
  virtual ~Stash() = default;

  /// Before the moves of an edit: makes room for so many bytes. Passes that were edited before keep theirs.
  virtual void begin(Edit& edit, std::int64_t bytes) = 0;
  /// Insert a record before record `before` that copies a contiguous tensor there, and one that copies it back. It begins
  /// with byte `byte`, a multiple of kAlign.
  virtual void write(Edit& edit, std::size_t before, const Operand& from, std::int64_t byte) const = 0;
  virtual void read(Edit& edit, std::size_t before, const Operand& to, std::int64_t byte) const = 0;
  /// Binds the room in the program that was edited last.
  virtual void bind(Bindings& bindings) const = 0;
  /// Those on a disk, if there are any.
  virtual std::vector<const io::ScratchFile*> files() const { return {}; }

  static constexpr std::int64_t kAlign = io::ScratchFile::kAlign;
  static std::int64_t padded(std::int64_t bytes) { return io::ScratchFile::padded(bytes); }
};

/// Files in a folder. described: without files; passes can be recorded, but not run.
class DiskStash final : public Stash {
 public:
  DiskStash(std::filesystem::path folder, bool described) : folder_(std::move(folder)), described_(described) {}

  void begin(Edit& edit, std::int64_t bytes) override;
  void write(Edit& edit, std::size_t before, const Operand& from, std::int64_t byte) const override;
  void read(Edit& edit, std::size_t before, const Operand& to, std::int64_t byte) const override;
  void bind(Bindings& bindings) const override;
  std::vector<const io::ScratchFile*> files() const override;

 private:
  std::filesystem::path folder_;
  bool described_;
  std::vector<std::shared_ptr<io::ScratchFile>> files_;  // all but the last are too small for later passes
  io::DiskPlace place_{"activations on disk", nullptr};
};

/// Host memory, page-locked if the device is a GPU. described: without memory.
class HostStash final : public Stash {
 public:
  HostStash(Device device, bool described) : device_(device), described_(described) {}

  void begin(Edit& edit, std::int64_t bytes) override;
  void write(Edit& edit, std::size_t before, const Operand& from, std::int64_t byte) const override;
  void read(Edit& edit, std::size_t before, const Operand& to, std::int64_t byte) const override;
  void bind(Bindings& bindings) const override;

 private:
  Operand there(const Operand& tensor, std::int64_t byte) const;

  Device device_;
  bool described_;
  std::vector<Pinned> blocks_;  // all but the last are too small for later passes
  int slot_ = -1;               // of the edit
  Spec spec_;                   // of that slot
};

}  // namespace hpcdl::offload
