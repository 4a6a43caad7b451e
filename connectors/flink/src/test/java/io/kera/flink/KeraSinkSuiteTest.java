package io.kera.flink;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.flink.connector.testframe.environment.MiniClusterTestEnvironment;
import org.apache.flink.connector.testframe.external.ExternalContextFactory;
import org.apache.flink.connector.testframe.junit.annotations.TestContext;
import org.apache.flink.connector.testframe.junit.annotations.TestEnv;
import org.apache.flink.connector.testframe.junit.annotations.TestExternalSystem;
import org.apache.flink.connector.testframe.junit.annotations.TestSemantics;
import org.apache.flink.connector.testframe.testsuites.SinkTestSuiteBase;
import org.apache.flink.core.execution.CheckpointingMode;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;

/** Flink's own suite of sinks. */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
class KeraSinkSuiteTest extends SinkTestSuiteBase<String> {
    @TestEnv
    MiniClusterTestEnvironment flink = new MiniClusterTestEnvironment();

    @TestExternalSystem
    KeraSystem kera = new KeraSystem();

    @TestSemantics
    CheckpointingMode[] semantics = {CheckpointingMode.AT_LEAST_ONCE, CheckpointingMode.EXACTLY_ONCE};

    @TestContext
    ExternalContextFactory<KeraSystem.SinkContext> context = name -> {
        try {
            return kera.new SinkContext();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    };
}
