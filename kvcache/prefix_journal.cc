#include "kvcache/prefix_journal.h"

#include <map>

namespace baton::kvcache {

void PrefixJournal::Log(Event event) {
  ++version_;
  events_.push_back(event);
  if (events_.size() > options_.max_events) events_.pop_front();
}

void PrefixJournal::Added(uint64_t name) {
  MutexLock lock(&mu_);
  if (names_.insert(name).second) Log({name, true});
}

void PrefixJournal::Removed(uint64_t name) {
  MutexLock lock(&mu_);
  if (names_.erase(name) > 0) Log({name, false});
}

PrefixJournal::Report PrefixJournal::Since(uint64_t version) const {
  MutexLock lock(&mu_);
  Report report;
  report.version = version_;
  const bool known = version > 0 && version <= version_ && version_ - version <= events_.size();
  if (!known) {
    for (const uint64_t name : names_) {
      if (report.added.size() >= options_.max_names) break;
      report.added.push_back(name);
    }
    return report;
  }
  report.base_version = version;
  std::map<uint64_t, bool> net;  // the last change of each name
  for (size_t i = events_.size() - (version_ - version); i < events_.size(); ++i) net[events_[i].name] = events_[i].added;
  for (const auto& [name, added] : net) (added ? report.added : report.removed).push_back(name);
  return report;
}

}  // namespace baton::kvcache
