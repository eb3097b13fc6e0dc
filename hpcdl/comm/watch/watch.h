#pragma once
// One watchdog thread in every rank. It answers "what are you doing?" from the ledger while the rank's own threads
// hang; when a wait reaches its deadline or a rank is gone, that of rank 0 asks all, and every rank gets the same
// verdict: one sentence, with which its collectives fail.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "hpcdl/comm/watch/channel.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/group.h"

namespace hpcdl::comm {

struct WatchOptions {
  double beat_seconds = 0.25;  // between two reports to rank 0, and from rank 0 to all, for what is known of ranks that
                               // are killed or frozen; more beyond 64 ranks
  double settle_seconds = 0.25;  // time after a rank is gone for the others to reach the point where they wait for it
  double answer_seconds = 3;     // time for a rank to answer what it is doing
  double leave_seconds =
      10;  // time for a rank to end by itself after the verdict; all of these together are less than the 30 s after
           // which no rank may remain
  double close_seconds = 60;  // time that rank 0 waits for the others at the end
  std::string program = {};   // program, which verdicts name at their end; empty: none
  /// Called from the watchdog's thread when a rank that knows the verdict has not ended by then (its main thread hangs
  /// elsewhere): must print the sentence and end the process. Null: nothing.
  std::function<void(const std::string& sentence)> leave = {};
};

class Watch {
 public:
  explicit Watch(std::unique_ptr<Channel> channel, WatchOptions options = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// For make_world(): waits for the verdict, and returns it. May outlive the Watch.
  OnLost on_lost() const;
  /// From now on the watchdog reads this world's ledger, and lets its collectives fail when there is a verdict. Holds
  /// the group until close(). For Algorithm::native, whose wait cannot be ended, the ranks are asked at the world's
  /// deadline, and WatchOptions::leave ends the process.
  void guard(const Group& world);

  /// On GPUs collectives are part of a rank's own work, and no wait of the CPU ends by itself: if that work stays the
  /// same for longer than this, the ranks are asked as if a wait had reached its deadline. 0: never.
  void limit_work(double seconds);

  /// This rank ends by its own error: the others fail with these words at once, and not at their deadlines. No
  /// verdict follows on this rank.
  void fail(std::string_view why);
  /// The run is over: the others are told that this rank is not lost, and watching ends. Rank 0, which receives
  /// all reports, waits for them first. Throws PeerLost if there is a verdict. The destructor does the same without
  /// waiting and throwing.
  void close();
  /// Empty: there is none.
  std::string verdict() const;

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace hpcdl::comm
