#pragma once
// A checkpoint that threads write while the ranks compute. Each rank has one thread, which writes its files and then a
// note about them into the unfinished folder; that of rank 0 waits for the notes and completes the checkpoint. The
// threads communicate through these notes alone, so they never take part in a collective beside the run's own.

#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "hpcdl/io/checkpoint_snapshot.h"

namespace hpcdl::io {

class BackgroundSave {
 public:
  struct Job {
    fs::path folder;  // unfinished; it exists, and all ranks see it
    TrainState state;
    std::int64_t serial = 0;
    int rank = 0, ranks = 1;
    std::function<void()> arrive = {};   // before anything is read; see Checkpoints::begin()
    std::function<void()> put_in_place;  // on rank 0, in its thread, after the folder is complete
  };
  /// The snapshot must stay as it is for the lifetime of this.
  BackgroundSave(Job job, const CheckpointSnapshot& snapshot);
  /// Waits for the thread, which goes on to the end; but on rank 0 for notes of other ranks, which may be lost, no longer
  /// than a few seconds.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Whether this rank's thread has ended, perhaps by an error; on rank 0 it ends last.
  bool ended() const { return ended_; }
  bool failed() const { return ended_ && error_; }
  /// Waits until this rank's own files are written; throws what prevented it.
  void wait_for_part();
  /// After all ranks have returned from wait_for_part(): waits for the end of the thread; throws what prevented it.
  void wait();

 private:
  enum class Progress { writing, part_written, failed };
  void run();
  std::vector<Json> all_parts(Json own) const;
  void accept(std::span<const Json> parts) const;

  Job job_;
  const CheckpointSnapshot& snapshot_;
  std::atomic<Progress> progress_ = Progress::writing;
  std::atomic<bool> ended_ = false, ending_ = false, all_written_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace hpcdl::io
