#include "hpcdl/comm/bootstrap/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace hpcdl::comm {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Null, and `why`, if the name is not known (yet).
Addresses look_up(const std::string& host, int port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV | AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const auto service = std::to_string(port);
  const char* name = host.empty() ? nullptr : host.c_str();
  int error = getaddrinfo(name, service.c_str(), &hints, &found);
  if (error == EAI_NONAME && name) {
    hints.ai_flags &= ~AI_NUMERICHOST;
    error = getaddrinfo(name, service.c_str(), &hints, &found);
  }
  if (error) why = fmt::format("{}: {}", host, gai_strerror(error));
  return {error ? nullptr : found, freeaddrinfo};
}

void set(const Socket& s, int level, int option, int value) { setsockopt(s.fd(), level, option, &value, sizeof value); }

Socket open_socket(const addrinfo& a) {
  return Socket(socket(a.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

std::vector<std::string> own_addresses() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {"127.0.0.1"};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  std::vector<std::pair<int, std::string>> ranked;  // IPv4, IPv6, this host alone
  for (const auto* i = all; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST];
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(i->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0 || std::strchr(text, '%'))
      continue;
    ranked.emplace_back(i->ifa_flags & IFF_LOOPBACK ? 2 : family == AF_INET6, text);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> texts;
  for (auto& [_, text] : ranked) texts.push_back(std::move(text));
  return texts;
}

Socket listen_at(const std::string& host, int port) {
  std::string why;
  const auto addresses = look_up(host, port, AI_PASSIVE, why);
  require(addresses != nullptr, "dist", "cannot listen at {}: {}", host, why);
  // Both families through one socket if the system has IPv6.
  const addrinfo* chosen = addresses.get();
  for (const addrinfo* a = addresses.get(); host.empty() && a; a = a->ai_next)
    if (a->ai_family == AF_INET6 && Socket(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0))) chosen = a;
  Socket s = open_socket(*chosen);
  require(static_cast<bool>(s), "dist", "cannot make a socket: {}", std::strerror(errno));
  if (chosen->ai_family == AF_INET6) set(s, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (port != 0) set(s, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(s.fd(), chosen->ai_addr, chosen->ai_addrlen) != 0 || listen(s.fd(), SOMAXCONN) != 0) {
    require(errno == EADDRINUSE, "dist", "cannot listen at {}:{}: {}", host.empty() ? "any address" : host, port,
            std::strerror(errno));
    return Socket();
  }
  return s;
}

int port_of(const Socket& listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const bool known = getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  require(known, "dist", "getsockname: {}", std::strerror(errno));
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

namespace {

/// By getsockname() or getpeername().
std::string end_of(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST];
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  return text;
}

}  // namespace

std::string own_end(const Socket& connected) {
  return end_of(connected.fd(), [](int fd, sockaddr* a, socklen_t* n) { return getsockname(fd, a, n); });
}
std::string other_end(const Socket& connected) {
  return end_of(connected.fd(), [](int fd, sockaddr* a, socklen_t* n) { return getpeername(fd, a, n); });
}

bool is_loopback(const std::string& address) {
  in_addr v4{};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Socket accept_from(const Socket& listening) {
  Socket s(accept4(listening.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (s) tune(s);
  return s;
}

Socket connect_to(const std::string& host, int port, std::chrono::milliseconds timeout, std::string& why) {
  const auto addresses = look_up(host, port, 0, why);
  for (const addrinfo* a = addresses.get(); a; a = a->ai_next) {
    Socket s = open_socket(*a);
    if (!s) continue;
    int error = connect(s.fd(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      error = ETIMEDOUT;
      socklen_t size = sizeof error;
      if (wait_for(s, true, Clock::now() + timeout)) getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
      tune(s);
      return s;
    }
    why = fmt::format("{}:{}: {}", host, port, std::strerror(error));
  }
  return Socket();
}

Socket begin_connect(const std::string& address, int port, int& error) {
  std::string why;
  const auto found = look_up(address, port, 0, why);
  Socket s = found ? open_socket(*found) : Socket();
  error = !found ? EADDRNOTAVAIL : !s ? errno : connect(s.fd(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  return error == 0 || error == EINPROGRESS ? std::move(s) : Socket();
}

int end_connect(const Socket& s) {
  pollfd p{s.fd(), POLLOUT, 0};
  if (poll(&p, 1, 0) == 0) return EINPROGRESS;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) tune(s);
  return error;
}

namespace {

bool is_of_this_host(const Socket& s) {
  const auto there = other_end(s);
  return is_loopback(there) || there == own_end(s);
}

}  // namespace

void tune(const Socket& s) {
  set(s, IPPROTO_TCP, TCP_NODELAY, 1);
  if (is_of_this_host(s)) return;
  set(s, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(s, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(s, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(s, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(s, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000);
}

void let_read_late(const Socket& s) { set(s, IPPROTO_TCP, TCP_USER_TIMEOUT, 0); }

Io receive_some(const Socket& s, std::span<std::byte> bytes, std::size_t& got) {
  got = 0;
  for (;;) {
    const ssize_t n = recv(s.fd(), bytes.data(), bytes.size(), 0);
    if (n > 0) return got = static_cast<std::size_t>(n), Io::done;
    if (n < 0 && errno == EINTR) continue;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Io::wait : Io::closed;
  }
}

Io send_some(const Socket& s, std::span<const std::byte> bytes, std::size_t& sent) {
  sent = 0;
  for (;;) {
    const ssize_t n = send(s.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) return sent = static_cast<std::size_t>(n), Io::done;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? Io::wait : Io::closed;
  }
}

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

bool wait_for(const Socket& s, bool write, Deadline deadline) {
  for (;;) {
    pollfd p{s.fd(), static_cast<short>(write ? POLLOUT : POLLIN), 0};
    const int n = poll(&p, 1, milliseconds_until(deadline));
    if (n > 0) return true;
    if (n == 0 && Clock::now() >= deadline) return false;
  }
}

}  // namespace hpcdl::comm
