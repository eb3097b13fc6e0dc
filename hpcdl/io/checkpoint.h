#pragma once
// The checkpoints of one run: checkpoints/step_00000020/ (see checkpoint_files.h), ... and `latest`, a text file with
// the name of the last one. A save is written aside as .tmp-step_..., synced, then renamed, so a kill at any moment
// leaves every earlier checkpoint whole and never a half one.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/checkpoint_snapshot.h"

namespace hpcdl::io {

struct ListedCheckpoint {
  fs::path path;
  std::optional<CheckpointInfo> info;  // none: damaged
  std::string flaw;                    // then why
};
/// The checkpoints in a folder of checkpoints, the last one written first, and before it those that cannot be read.
/// Only state.json and the marker of each are read; no folder: none.
std::vector<ListedCheckpoint> list_checkpoints(const fs::path& folder);

class Checkpoints {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// Makes the folder, removes the remains of killed saves, and holds a lock until destroyed; throws Error if another
  /// process is writing checkpoints there. keep: newest checkpoints to keep, 0 for all. ranks: those that write; it
  /// must outlive this; null: only this process. With ranks, all calls are collective, and fail on all ranks or on
  /// none. A folder that some rank does not see is an Error here, and not only when hours of training have to be saved.
  explicit Checkpoints(const fs::path& folder, std::int64_t keep = 0, Ranks* ranks = nullptr);
  /// Waits for the threads of a save that is pending. If a rank is lost, nothing of it remains.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;

  /// Writes a checkpoint of state.step (replacing one of the same step), then removes those beyond `keep`. On an Error,
  /// or when a rank dies, nothing of it remains (or .tmp-..., until the next run) and the earlier ones are untouched.
  /// Returns its folder.
  fs::path save(const TrainState& state, const CheckpointContent& content);
  /// The same for a checkpoint that `fill` writes into an empty folder; `serial` is its number.
  fs::path save(std::int64_t step, const std::function<void(const fs::path& folder, std::int64_t serial)>& fill);

  /// The same in two halves. begin() returns when what the run goes on to change has been copied, into memory that is
  /// used again by the next save, and threads write it; a save that is pending is finished before. finish() waits for
  /// them, on all ranks, and throws what prevented the save: then nothing of it remains. Precondition of finish():
  /// pending(). `arrive`: waits until what stays has been copied to the host; a thread calls it, so that begin() need
  /// not wait.
  void begin(const TrainState& state, const CheckpointContent& content, const Stays& stays = nullptr,
             std::function<void()> arrive = nullptr);
  fs::path finish();
  /// Before the first begin() with tensors of the same specs: a thread makes its memory. The system hands it out page by
  /// page when it is first written, which takes longer than the copy.
  void prepare(const CheckpointContent& content, const Stays& stays) { snapshot_.prepare(content, stays, ranks_); }
  /// Not collective: a save has begun; and this rank's thread has ended, perhaps by an error, so that finish() takes no
  /// longer than the other ranks do.
  bool pending() const { return pending_ != nullptr; }
  bool ready() const;
  /// Not collective: an error has ended this rank's thread. The threads of other ranks may wait for it: finish() is due
  /// on all ranks.
  bool failed() const;

  /// resume: "none"; "auto": the newest whole checkpoint of `folder`, with a warning for each damaged one; or the
  /// path of one checkpoint. Everything is read and verified. Returns nothing if there is no checkpoint to resume from.
  /// Throws Error if the named one is damaged, or if all of them are.
  /// With `ranks` each verifies a share, all get the same result, and rank 0 warns.
  static std::optional<CheckpointInfo> find(const fs::path& folder, const std::string& resume, const Warn& warn,
                                            Ranks* ranks = nullptr);

 private:
  void lock_and_clean();
  void expect_one_folder();
  void prune(const fs::path& newest);
  struct Begun;
  struct Pending;
  Begun set_aside(std::int64_t step);
  void complete(Begun& begun);
  void remove_aside(const Begun& begun);
  void give_up();

  bool first() const { return ranks_.rank() == 0; }

  fs::path folder_;
  std::int64_t keep_;
  OneRank alone_;
  Ranks& ranks_;
  Fd lock_;
  CheckpointSnapshot snapshot_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace hpcdl::io
