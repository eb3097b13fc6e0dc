#include "hpcdl/io/jsonl.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"

namespace hpcdl::io {
namespace {

bool belongs_before(const std::string& line, std::int64_t last_step) {
  const Json json = Json::parse(line, nullptr, false);
  const auto step = json.is_object() ? json.find("step") : json.end();
  return step != json.end() && step->is_number_integer() && step->get<std::int64_t>() <= last_step;
}

std::string kept_lines(const std::string& text, std::int64_t last_step) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // incomplete line
    const std::string line = text.substr(at, end - at);
    if (belongs_before(line, last_step)) out += line + '\n';
    at = end + 1;
  }
  return out;
}

}  // namespace

JsonlWriter::JsonlWriter(const fs::path& path, std::optional<std::int64_t> resumed_at) : path_(path) {
  std::error_code ignored;
  std::string kept;
  if (resumed_at && fs::exists(path, ignored))
    kept = kept_lines(read_file(path, std::numeric_limits<std::int64_t>::max()), *resumed_at);
  write_file_atomic(path, kept);
  fd_ = Fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd_) fail_file(path, "open for writing", errno);
}

void JsonlWriter::write(const Json& line) {
  require(line.is_object(), "io", "{}: expected an object per line, found {}", path_.string(), json_kind(line));
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const auto n = ::write(fd_.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(path_, "write", errno);
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace hpcdl::io
