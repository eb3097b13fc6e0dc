#pragma once
// How ranks share data before collectives exist, and while those hang: values by name, and small messages.
// Rank 0 is the server; every rank keeps one TCP connection to it for its whole lifetime, so that the others notice
// when a rank is gone. Errors name ranks and hosts.

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

/// All calls are thread-safe. Waits end at their deadline with PeerLost that names what is missing;
/// rank 0 enforces the deadline, and if rank 0 itself does not answer, the caller does so a few seconds later.
class Store {
 public:
  using OnMessage = std::function<void(int from, std::string_view bytes)>;
  using OnLost = std::function<void(int rank, const std::string& why)>;
  /// Whether this rank is asked to stop. Called every kAsk while waiting for ranks.
  using Asked = std::function<bool()>;
  static constexpr std::chrono::milliseconds kAsk{100};

  /// Used by open_store(), which finds rank 0: introduces this rank at the other end of `socket`. Null if another
  /// program listens there. Throws PeerLost if not all ranks have connected by the deadline, Stopped if one of them was
  /// `asked` to stop before. `server`: that of this process, on rank 0.
  static std::shared_ptr<Store> introduce(Socket socket, int rank, int world, const RunKey& key, Deadline deadline,
                                          std::unique_ptr<StoreServer> server = nullptr, const Asked& asked = {});
  /// Without close(): the others see this rank as lost.
  ~Store();

  int rank() const;
  int world() const;
  /// The host name of each rank.
  const std::vector<std::string>& hosts() const;
  /// The key of this launch.
  const RunKey& key() const;
  /// The numeric addresses of this rank and rank 0 in their connection.
  const std::string& own_address() const;
  const std::string& address_of_rank_0() const;

  /// A later value replaces an earlier one.
  void set(std::string_view key, std::string_view value);
  /// Waits until some rank has set it.
  std::string get(std::string_view key, Deadline deadline);
  void wait(const std::vector<std::string>& keys, Deadline deadline);
  /// Adds to the number under this key, and returns the sum; get() returns it in decimal.
  std::int64_t add(std::string_view key, std::int64_t by, Deadline deadline);
  /// Collective: every rank's value, by rank. A lost rank ends it at once, a late rank at the deadline;
  /// the error names the rank.
  std::vector<std::string> gather(std::string_view name, std::string_view value, Deadline deadline);
  /// The same, but only rank 0 gets the values.
  std::vector<std::string> collect(std::string_view name, std::string_view value, Deadline deadline);
  /// Collective: every rank gets its own of the values of rank 0. Values of the others are ignored.
  std::string scatter(std::string_view name, const std::vector<std::string>& values, Deadline deadline);
  void barrier(std::string_view name, Deadline deadline) { collect(name, "", deadline); }

  /// Sends to one rank, or with -1 to all others; through rank 0, in order. Does not wait. Nothing happens for a rank
  /// that is gone.
  void send(int to, std::string_view bytes);
  /// Called from a thread of the store with each message and each loss of a rank, including those that came before.
  /// Handlers must not wait, and may call only set() and send(). If rank 0 is lost, the store ends.
  void listen(OnMessage on_message, OnLost on_lost);

  /// The run of this rank is over: it will no longer be reported as lost. Does not wait.
  void finish();
  /// On rank 0: number of messages that the store has passed on, received or sent so far. Elsewhere 0.
  std::int64_t messages() const;

  /// Says goodbye; rank 0 waits for all others. False if some had not left at the deadline.
  bool close(Deadline deadline);

 private:
  class Link;
  std::string together(Together kind, std::string_view name, std::string_view value, Deadline deadline);
  Store(std::unique_ptr<StoreServer> server, std::unique_ptr<Link> link);

  std::unique_ptr<StoreServer> server_;  // after link_: the link of rank 0 itself ends first
  std::unique_ptr<Link> link_;
};

}  // namespace hpcdl::comm
