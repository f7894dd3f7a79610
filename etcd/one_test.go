package etcd_test

import (
	"testing"

	"github.com/fencelock/fencelock/internal/servers"
)

// TestOnOneServer runs what leaves its server alone, each test in a keyspace of its own.
func TestOnOneServer(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	for _, tt := range []struct {
		name string
		test func(*testing.T, *rig)
	}{
		{"LostReplies", lostReplies},
		{"LostRepliesOfWaiter", lostRepliesOfWaiter},
		{"ReleaseWithoutAnswer", releaseWithoutAnswer},
		{"ReleaseAfterSilence", releaseAfterSilence},
		{"SlowWay", slowWay},
		{"ReleaseAfterRawDelete", releaseAfterRawDelete},
		{"ReleaseCancelled", releaseCancelled},
		{"TurnPassed", turnPassed},
		{"TryWithoutAnswer", tryWithoutAnswer},
		{"BackOff", backOff},
		{"LateAcquire", lateAcquire},
		{"LateAcquireAfterRelease", lateAcquireAfterRelease},
		{"AbandonWithoutDoubt", abandonWithoutDoubt},
		{"CancelledWaiter", cancelledWaiter},
		{"SharedLease", sharedLease},
		{"OwnLeases", ownLeases},
		{"GrantedTTL", grantedTTL},
		{"SharedDeadline", sharedDeadline},
		{"ShortestTTL", shortest},
		{"ManyOwnLeases", manyOwn},
		{"SessionRevoked", sessionRevoked},
		{"WaiterSessionRevoked", waiterSessionRevoked},
		{"WaiterEntryDeleted", waiterEntryDeleted},
		{"MiddleWaiterDies", middleWaiterDies},
		{"DeletedTogether", deletedTogether},
		{"TwoMutexesOfOneProcess", twoMutexes},
		{"NoLeasesLeft", noLeasesLeft},
		{"BaseLost", baseLost},
		{"BaseOfAnother", baseOfAnother},
		{"ForeignEntry", foreignEntry},
		{"Raise", raise},
		{"Prefixes", prefixes},
		{"Guard", guard},
		{"GuardInTransactions", guardInTransactions},
		{"HeldCompare", heldCompare},
		{"RoundTrips", roundTrips},
		{"ContendedCalls", contendedCalls},
		{"ManyHeld", manyHeld},
		{"FewWatches", fewWatches},
		{"List", list},
		{"ListAbreast", listAbreast},
		{"GateOfAnother", gateOfAnother},
		{"GateCosts", gateCosts},
		{"BothInStore", bothInStore},
		{"UndrainedStrangers", undrainedStrangers},
		{"RefusedWaiterLeaves", refusedWaiterLeaves},
		{"LostReplyBeforeGate", lostReplyBeforeGate},
		{"SetGateLostReply", setGateLostReply},
		{"ReportLeases", reportLeases},
		{"BaseLostAndRaised", baseLostAndRaised},
		{"CrowdShares", crowdShares},
		{"CrowdWithOwnLeases", crowdWithOwnLeases},
		{"CrowdOfOneName", crowdOfOneName},
		{"CrowdLosesReplies", crowdLosesReplies},
		{"CrowdWithoutLease", crowdWithoutLease},
		{"CrowdInSilence", crowdInSilence},
		{"SameKey", sameKey},
		{"OtherKeys", otherKeys},
		{"Reserves", reserves},
		{"ReservesAfterExpiry", reservesAfterExpiry},
		{"ReservesOfWaiters", reservesOfWaiters},
		{"ReservesWithFloor", reservesWithFloor},
		{"ReservesWithinReach", reservesWithinReach},
		{"ReservesInspected", reservesInspected},
		{"SentUnderAnOldLease", sentUnderAnOldLease},
		{"RecipeBesideReaders", recipeBesideReaders},
		{"HoldsHaveIDs", holdsHaveIDs},
		{"BusyPool", busyPool},
		{"FoundersAtOnce", foundersAtOnce},
		{"KeeperLeaves", keeperLeaves},
		{"PermitsAtOnce", permitsAtOnce},
		{"SecondPermitFirst", secondPermitFirst},
		{"ReadersByOneList", readersByOneList},
		{"PermitsByOneList", permitsByOneList},
		{"FirstInFrontLeaves", firstInFrontLeaves},
		{"LastPermitFirst", lastPermitFirst},
		{"SlotsOfTheGone", slotsOfTheGone},
		{"StoppedReader", stoppedReader},
		{"LostRepliesOfReader", lostRepliesOfReader},
		{"LostRepliesOfPermit", lostRepliesOfPermit},
		{"LateCopyOfReader", lateCopyOfReader},
		{"LateCopyAfterBreak", lateCopyAfterBreak},
		{"BaseAhead", baseAhead},
		{"BaseRaised", baseRaised},
		{"FloorOfReader", floorOfReader},
		{"BaseLostBeforeReader", baseLostBeforeReader},
		{"BreakOfMany", breakOfMany},
		{"StrangerAmongReaders", strangerAmongReaders},
		{"ReadersAtGate", readersAtGate},
		{"SharedRoundTrips", sharedRoundTrips},
		{"Namespace", inNamespace},
		{"SilentStore", silentStore},
		{"TurnAndEntryLost", turnAndEntryLost},
		{"HeldAfterUnlock", heldAfterUnlock},
		{"LastSecond", lastSecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, on(t, e, tt.name+":"))
		})
	}
}
