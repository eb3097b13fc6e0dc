#pragma once
// What all ranks know together before there are collectives, and while those hang: values by name, and small messages.
// Rank 0 serves; every rank keeps one TCP connection to it for as long as it lives, so that the others hear when a rank
// is gone. Errors name ranks and hosts.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

enum class Together : std::uint8_t;
class RunKey;
class Socket;
class StoreServer;

/// All calls may come from several threads. Waits end at their deadline with PeerLost that says who or what is missing;
/// the deadline is kept by rank 0, and where rank 0 itself does not answer, by the caller a few seconds later.
class Store {
 public:
  using OnMessage = std::function<void(int from, std::string_view bytes)>;
  using OnLost = std::function<void(int rank, const std::string& why)>;
  /// Whether this rank is asked to stop. Called every kAsk while ranks are waited for.
  using Asked = std::function<bool()>;
  static constexpr std::chrono::milliseconds kAsk{100};

  /// Used by open_store(), which finds rank 0: introduces this rank at the other end of `socket`. Null when somebody
  /// else listens there. Throws PeerLost when not all ranks have come by the deadline, Stopped when one of them was
  /// `asked` to stop before. `server`: this process's, on rank 0.
  static std::shared_ptr<Store> introduce(Socket socket, int rank, int world, const RunKey& key, Deadline deadline,
                                          std::unique_ptr<StoreServer> server = nullptr, const Asked& asked = {});
  /// Without close(): the others see this rank as lost.
  ~Store();

  int rank() const;
  int world() const;
  /// How the host of each rank names itself.
  const std::vector<std::string>& hosts() const;
  /// What this launch alone knows.
  const RunKey& key() const;
  /// Numbers of the addresses that this rank and rank 0 use between them.
  const std::string& own_address() const;
  const std::string& address_of_rank_0() const;

  /// The last value counts.
  void set(std::string_view key, std::string_view value);
  /// Waits until somebody has set it.
  std::string get(std::string_view key, Deadline deadline);
  void wait(const std::vector<std::string>& keys, Deadline deadline);
  /// The sum of all that was added under this key, as get() gives it in decimal.
  std::int64_t add(std::string_view key, std::int64_t by, Deadline deadline);
  /// Collective: every rank's value, by rank. A rank that is lost ends it at once, one that is late at the deadline;
  /// both are named.
  std::vector<std::string> gather(std::string_view name, std::string_view value, Deadline deadline);
  /// The same, but rank 0 alone is told them; the others get none.
  std::vector<std::string> collect(std::string_view name, std::string_view value, Deadline deadline);
  /// Collective: every rank gets its own of rank 0's values. What the others give is not looked at.
  std::string scatter(std::string_view name, const std::vector<std::string>& values, Deadline deadline);
  void barrier(std::string_view name, Deadline deadline) { collect(name, "", deadline); }

  /// To one rank, or with -1 to all others; through rank 0, in order. Does not wait. Nothing happens for a rank that is
  /// gone.
  void send(int to, std::string_view bytes);
  /// Called from a thread of the store with each message and each loss of a rank, those that came before included. They
  /// must not wait, and may call set() and send() alone. A lost rank 0 takes the store with it.
  void listen(OnMessage on_message, OnLost on_lost);

  /// This rank's run is over: the others do not hear of it as lost any more. Does not wait.
  void finish();
  /// On rank 0: messages that it has passed on, taken or sent as the store so far. Elsewhere 0.
  std::int64_t messages() const;

  /// Says goodbye; rank 0 waits for all others. False when some were still there at the deadline.
  bool close(Deadline deadline);

 private:
  class Link;
  std::string together(Together kind, std::string_view name, std::string_view value, Deadline deadline);
  Store(std::unique_ptr<StoreServer> server, std::unique_ptr<Link> link);

  std::unique_ptr<StoreServer> server_;  // after link_: rank 0's own link ends first
  std::unique_ptr<Link> link_;
};

}  // namespace hpcdl::comm
