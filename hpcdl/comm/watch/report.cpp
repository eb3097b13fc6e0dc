#include "hpcdl/comm/watch/report.h"

#include <cstring>
#include <type_traits>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

static_assert(std::is_trivially_copyable_v<Report>);

Report report_of(const Ledger& ledger) {
  const auto now = Clock::now().time_since_epoch().count();
  Report r{ledger.work(), ledger.collective()};
  for (LedgerEntry* e : {&r.work, &r.collective}) e->since = e->since > 0 ? now - e->since : 0;
  return r;
}

std::string pack(const Report& report) {
  std::string text(sizeof report, '\0');
  std::memcpy(text.data(), &report, sizeof report);
  return text;
}

Report unpack_report(std::string_view text) {
  Report r;
  if (text.size() != sizeof r) return r;
  std::memcpy(static_cast<void*>(&r), text.data(), sizeof r);
  return is_sound(r.work) && is_sound(r.collective) ? r : Report{};
}

}  // namespace hpcdl::comm
