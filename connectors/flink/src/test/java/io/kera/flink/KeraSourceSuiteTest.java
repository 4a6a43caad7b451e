package io.kera.flink;

import org.apache.flink.connector.testframe.environment.MiniClusterTestEnvironment;
import org.apache.flink.connector.testframe.external.ExternalContextFactory;
import org.apache.flink.connector.testframe.junit.annotations.TestContext;
import org.apache.flink.connector.testframe.junit.annotations.TestEnv;
import org.apache.flink.connector.testframe.junit.annotations.TestExternalSystem;
import org.apache.flink.connector.testframe.junit.annotations.TestSemantics;
import org.apache.flink.connector.testframe.testsuites.SourceTestSuiteBase;
import org.apache.flink.core.execution.CheckpointingMode;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;

/** Flink's own suite of sources. */
@EnabledIfSystemProperty(named = "kera.program", matches = ".+")
class KeraSourceSuiteTest extends SourceTestSuiteBase<String> {
    @TestEnv
    MiniClusterTestEnvironment flink = new MiniClusterTestEnvironment();

    @TestExternalSystem
    KeraSystem kera = new KeraSystem();

    @TestSemantics
    CheckpointingMode[] semantics = {CheckpointingMode.EXACTLY_ONCE};

    @TestContext
    ExternalContextFactory<KeraSystem.SourceContext> context = name -> kera.new SourceContext();
}
