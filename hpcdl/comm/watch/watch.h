#pragma once
// One watchdog thread in every rank. It answers "what are you doing?" from the ledger while the rank's own threads
// hang; when a wait comes to its deadline or a rank is gone, rank 0's asks all, and every rank gets the same verdict:
// one sentence, with which its collectives fail.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "hpcdl/comm/group.h"
#include "hpcdl/comm/watch/channel.h"
#include "hpcdl/comm/world.h"

namespace hpcdl::comm {

struct WatchOptions {
  double beat_seconds = 0.25;    // between two reports to rank 0, and of rank 0 to all, for what is known of ranks that
                                 // are killed or frozen; more beyond 64 ranks
  double settle_seconds = 0.25;  // after a rank is gone, for the others to come to where they miss it
  double answer_seconds = 3;     // for a rank to say what it is doing
  double leave_seconds = 10;     // for a rank to end by itself after the verdict; all of it is less than the 30 s after
                                 // which nobody may remain
  double close_seconds = 60;     // for rank 0 to wait for the others at the end
  std::string program = {};      // that verdicts name behind what they say; empty: none
  /// Called from the watchdog's thread when a rank that knows the verdict has not ended by then (its main thread hangs
  /// elsewhere): to print the sentence and end the process. Null: nothing.
  std::function<void(const std::string& sentence)> leave = {};
};

class Watch {
 public:
  explicit Watch(std::unique_ptr<Channel> channel, WatchOptions options = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// For make_world(): waits for the verdict, and gives it. May outlive the Watch.
  OnLost on_lost() const;
  /// From now on the watchdog reads this world's ledger, and makes its collectives fail when there is a verdict. Holds
  /// the group until close(). Algorithm::native, whose wait cannot be ended, is asked about at the world's deadline,
  /// and the process left by WatchOptions::leave.
  void guard(const Group& world);

  /// On GPUs collectives are part of a rank's own work, and no wait of the CPU ends by itself: where that work is one
  /// thing for longer than this, the ranks are asked as if a wait had come to its deadline. 0: never.
  void limit_work(double seconds);

  /// This rank ends by an error of its own: the others fail with these words at once, and not when they miss it. No
  /// verdict follows here.
  void fail(std::string_view why);
  /// The run is over: the others hear that this rank is not lost, and nothing is watched any more. Rank 0, who hears
  /// for all, waits for them first. Throws PeerLost when there is a verdict. The destructor does the same without
  /// waiting and throwing.
  void close();
  /// Empty: there is none.
  std::string verdict() const;

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace hpcdl::comm
