#pragma once
// A folder that is either whole or absent: filled as ".tmp-NAME" in the same parent folder, then renamed.

#include "hpcdl/core/unfinished.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"

namespace hpcdl::quant {

/// The files of a model folder besides its tensors and config.json.
inline constexpr const char* kCompanions[] = {
    "tokenizer.json", "tokenizer_config.json",  "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "generation_config.json", "chat_template.jinja"};

/// Copies those that are in `from`, each atomically.
void copy_companions(const io::fs::path& from, const io::fs::path& to);

class StagedFolder {
 public:
  /// Throws Error if `target` holds anything but the files of a model folder, so that other files are never lost, and
  /// while another process writes it. The remains of a killed writer are removed.
  explicit StagedFolder(io::fs::path target);
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  /// Without commit() no folder remains.
  ~StagedFolder();

  const io::fs::path& path() const { return aside_; }
  void commit();

 private:
  /// Lock: only this process writes during its lifetime.
  struct Lock {
    explicit Lock(const io::fs::path& target);
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock();
    io::fs::path path;
    io::Aside file;
  };

  io::fs::path target_, aside_;
  Lock lock_;
  Unfinished unfinished_;
};

}  // namespace hpcdl::quant
