package postgres_test

import (
	"testing"

	"github.com/fencelock/fencelock/internal/servers"
)

// TestOnOneServer runs, one after the other, what does no harm to its server.
func TestOnOneServer(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t, servers.PostgresOptions{})
	for _, tt := range []struct {
		name string
		test func(*testing.T, *servers.PostgresServer)
	}{
		{"CheckToken", checkToken},
		{"CheckTokenIsAtomic", checkTokenIsAtomic},
		{"RowRoundTrips", rowRoundTrips},
		{"RowSessionEnded", inTx(rowSessionEnded)},
		{"RowPoolUsedUp", rowPoolUsedUp},
		{"RowOwners", rowOwners},
		{"RowLostReplies", inTx(rowLostReplies)},
		{"RowShortWait", rowShortWait},
		{"RowDoors", rowDoors},
		{"LeaseLostReplies", leaseLostReplies},
		{"PushGoesToOneProcess", pushGoesToOneProcess},
		{"ListenerIsOutOfReach", listenerIsOutOfReach},
		{"LostPushIsFound", lostPushIsFound},
		{"DeadAreSkipped", deadAreSkipped},
		{"AbandonHandsOn", abandonHandsOn},
		{"PlaceIsKept", placeIsKept},
		{"TakenOverIsFreed", takenOverIsFreed},
		{"GivenPoolOfAnyExecMode", givenPoolOfAnyExecMode},
		{"PasswordsDoNotShow", passwordsDoNotShow},
		{"URLReachesTheServer", uRLReachesTheServer},
		{"Tx", inTx(tx)},
		{"TxReplaced", inTx(txReplaced)},
		{"TxLeftOpen", txLeftOpen},
		{"TxCosts", txCosts},
		{"TxSlowCommit", txSlowCommit},
		{"TxOwnErrors", txOwnErrors},
		{"TxPartLeftOpen", txPartLeftOpen},
		{"LockTxExcludes", lockTxExcludes},
		{"LockTxCounts", lockTxCounts},
		{"LockTxWaits", lockTxWaits},
		{"LockTxEnds", lockTxEnds},
		{"LockTxSavepoints", lockTxSavepoints},
		{"LockTxRefuses", lockTxRefuses},
		{"LockTxGates", lockTxGates},
		{"RowLongTTL", rowLongTTL},
		{"RowSilentWaiter", rowSilentWaiter},
		{"RowDoorOfTheSilent", rowDoorOfTheSilent},
		{"OpenOfSlow", openOfSlow},
		{"BeginsFew", beginsFew},
		{"SlowToBegin", slowToBegin},
		{"ManyBeginSlowly", manyBeginSlowly},
		{"SecondHost", secondHost},
		{"UnknownHost", unknownHost},
		{"DialOfBeforeConnect", dialOfBeforeConnect},
		{"LateForAnAnswer", lateForAnAnswer},
		{"LateAnswersKeepConnections", lateAnswersKeepConnections},
		{"LateConnection", lateConnection},
		{"SlowHello", slowHello},
		{"AsksOnce", asksOnce},
		{"FrozenPool", frozenPool},
		{"SlowDialOfADB", slowDialOfADB},
		{"SlowDraw", slowDraw},
		{"PoolOnASlowWay", poolOnASlowWay},
		{"GateKeyspaces", gateKeyspaces},
		{"GateUnreadable", gateUnreadable},
		{"GateRoundTrips", gateRoundTrips},
		{"GateQueue", gateQueue},
		{"GateOwners", gateOwners},
		{"GateClients", gateClients},
		{"GateSource", gateSource},
		{"GateParkedRow", gateParkedRow},
		{"GateParkedLease", gateParkedLease},
		{"GateParkedRenewal", gateParkedRenewal},
		{"GateStrangers", gateStrangers},
		{"RaiseHeldInTx", inTx(raiseHeldInTx)},
		{"HeldIdle", inTx(heldIdle)},
		{"TokenIsDrawn", tokenIsDrawn},
		{"DrawOfAWaiter", drawOfAWaiter},
		{"ResetWhileDrawn", resetWhileDrawn},
		{"RowByHand", inTx(rowByHand)},
		{"ModesExclude", modesExclude},
		{"DeadWriterWaits", deadWriterWaits},
		{"WriterLeaves", writerLeaves},
		{"EraOfAFloor", eraOfAFloor},
		{"DeathLetsAllIn", deathLetsAllIn},
		{"DeathSeenByAWriter", deathSeenByAWriter},
		{"HoldsAreSwept", holdsAreSwept},
		{"HoldsAreSweptInParts", holdsAreSweptInParts},
		{"BeatFindsDeadClaims", beatFindsDeadClaims},
		{"GatesOfHolds", gatesOfHolds},
		{"HostileHolds", hostileHolds},
		{"SharedTryWritesNothing", sharedTryWritesNothing},
		{"RaiseHeldAfterLoss", raiseHeldAfterLoss},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, s) })
	}
}
