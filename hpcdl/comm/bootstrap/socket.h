#pragma once
// TCP sockets with deadlines. All are non-blocking, and closed on exec.

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// Of this host, as it names itself.
std::string host_name();
/// Numbers of this host's addresses, those that other hosts can reach before those they cannot.
std::vector<std::string> own_addresses();

/// Listens at `port` (0: a free one) of `host` (empty: all addresses). Invalid when the port is taken; throws Error for
/// other reasons.
Socket listen_at(const std::string& host, int port);
int port_of(const Socket& listening);
/// Numbers of the address of this end of a connection and of the other; empty: there is none.
std::string own_end(const Socket& connected);
std::string other_end(const Socket& connected);
/// Whether others than this host can reach it.
bool is_loopback(const std::string& address);
/// Invalid when nobody waits.
Socket accept_from(const Socket& listening);

/// Tries once, for at most `timeout` and until the deadline. Invalid, and `why` says so, when nobody answers there.
/// Numbers are used as they are; names are looked up, never numbers.
Socket connect_to(const std::string& host, int port, std::chrono::milliseconds timeout, std::string& why);

/// The same without waiting, to an address in numbers. Invalid where that fails at once: `error` is an errno.
Socket begin_connect(const std::string& address, int port, int& error);
/// What became of it: 0, and it is tuned; EINPROGRESS; or another errno.
int end_connect(const Socket& socket);

/// Small messages leave at once; a peer whose host is gone is noticed within about 20 s. A peer of this host is told by
/// its kernel that it is gone: it is not asked. Of 32,640 connections between 256 ranks of a host so many questions came
/// at once that the loopback device lost them (net.core.netdev_max_backlog), and with them the connections.
void tune(const Socket& socket);
/// The peer reads when it likes, and that alone does not end the connection: by what tune() sets, Linux takes a peer
/// that has left its buffers full for 20 s for one that is gone. One whose host is gone is then noticed only while
/// nothing is under way to it.
void let_read_late(const Socket& socket);

enum class Io { done, wait, closed };  // closed: by the peer, or broken
/// Receives what is there, at most `bytes`; `got` of it.
Io receive_some(const Socket& socket, std::span<std::byte> bytes, std::size_t& got);
Io send_some(const Socket& socket, std::span<const std::byte> bytes, std::size_t& sent);

/// Waits until it can be read (or written). False at the deadline.
bool wait_for(const Socket& socket, bool write, Deadline deadline);

/// Milliseconds until then for poll(), rounded up; at least 0.
int milliseconds_until(Deadline deadline);

}  // namespace hpcdl::comm
